"""Items: the small parts of a job that succeed or fail one by one, and what they mean for the job.

An item belongs to an attempt and to a phase of it. A job all of whose items failed has failed; a
job some of whose items failed has completed with errors. The next attempt need not do again what
an earlier one finished; an operator who runs a job again decides whether that still counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from trellis.core.commands import Complete, Fail, build_complete
from trellis.core.durations import Instant
from trellis.core.events import Event, EventKind
from trellis.core.job import Failure, Fence

ItemStatus = Literal["pending", "in_progress", "completed", "skipped", "failed"]
#: An item with one of these needs no more work.
FINISHED: Final[frozenset[ItemStatus]] = frozenset({"completed", "skipped"})
_NAMED: Final = 3


def settle_return(
    fence: Fence,
    result: str | None,
    items: Mapping[tuple[str, str], ItemStatus],
    started_at: Instant | None,
    roll: float,
) -> Complete | Fail:
    """Return the command that settles an attempt whose handler returned.

    `items` has the status of every item of the attempt, by phase and name.
    """
    failed = [name for (_, name), status in items.items() if status == "failed"]
    if failed and len(failed) == len(items):
        return Fail(fence, _all_failed(failed), roll=roll, started_at=started_at)
    return build_complete(fence, result, len(failed), started_at)


def _all_failed(names: Sequence[str]) -> Failure:
    shown = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    what = "The only item" if len(names) == 1 else f"All {len(names):,} items"
    return Failure("items_failed", f"{what} failed: {shown}{more}.")


def first_claim_that_counts(journal: Iterable[Event]) -> int:
    """Return the first claim whose finished items the next attempt may leave out.

    When an operator runs a job again, all items are done again, unless the command was about the
    failed ones.
    """
    claims, first = 0, 1
    for event in journal:
        if event.kind is EventKind.STARTED:
            claims += 1
        elif event.kind is EventKind.RETRIED and not (event.data or {}).get("failed_items"):
            first = claims + 1
    return first
