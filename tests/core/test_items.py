"""What the items of an attempt mean for its job, and which of them later attempts leave out."""

from __future__ import annotations

from trellis.core.commands import Complete, Fail
from trellis.core.events import Data, Event, EventKind
from trellis.core.items import ItemStatus, first_claim_that_counts, settle_return
from trellis.core.job import Failure, Fence, SessionId
from trellis.core.states import State

FENCE = Fence(SessionId(1), 2)


def settled(*statuses: ItemStatus) -> Complete | Fail:
    items = {("", f"item-{number}"): status for number, status in enumerate(statuses, 1)}
    return settle_return(FENCE, '"done"', items, 5, 0.25)


def test_failed_items_among_others_are_counted() -> None:
    assert settled("completed", "failed", "skipped", "failed") == Complete(FENCE, '"done"', 2, 5)
    assert settled("in_progress", "failed") == Complete(FENCE, '"done"', 1, 5)
    assert settled("pending", "failed") == Complete(FENCE, '"done"', 1, 5)
    assert settled("completed", "pending") == Complete(FENCE, '"done"', 0, 5)
    assert settled() == Complete(FENCE, '"done"', 0, 5)


def test_an_attempt_whose_items_all_failed_has_failed_and_may_be_retried() -> None:
    one = Failure("items_failed", "The only item failed: item-1.")
    assert settled("failed") == Fail(FENCE, one, roll=0.25, started_at=5)
    many = Failure("items_failed", "All 4 items failed: item-1, item-2, item-3 and 1 more.")
    assert settled("failed", "failed", "failed", "failed") == Fail(
        FENCE, many, roll=0.25, started_at=5
    )


def test_items_count_from_the_last_time_an_operator_ran_everything_again() -> None:
    def journal(*kinds: str) -> list[Event]:
        data: dict[str, Data] = {
            "items": {"actor": "ann", "failed_items": True},
            "all": {"actor": "ann"},
        }
        return [
            Event(
                EventKind.STARTED if kind == "started" else EventKind.RETRIED,
                version, State.ACTIVE, 0, 1, None, data.get(kind),
            )
            for version, kind in enumerate(kinds, 1)
        ]  # fmt: skip

    assert first_claim_that_counts([]) == 1
    assert first_claim_that_counts(journal("started", "started")) == 1
    assert first_claim_that_counts(journal("started", "items", "started")) == 1
    assert first_claim_that_counts(journal("started", "started", "all", "started")) == 3
    assert first_claim_that_counts(journal("started", "all", "started", "items", "started")) == 2
