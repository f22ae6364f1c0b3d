"""C4: a job ends at most once per generation, by the attempt that owned it.

The journal says who; the effect log says whether that is true: a completed attempt had a run that
returned, its result names the attempt that made it, and so does the message of a failed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.harness.faults.checker.histories import Event, Histories, Outcome, transitions
from tests.harness.faults.checker.violations import Violation, about

_RULE = "C4 settlement"

ENDED: Final = frozenset(
    {"completed", "completed_with_errors", "failed", "cancelled", "expired", "skipped", "stale",
     "dead", "dismissed"}
)  # fmt: skip
#: Events that end an attempt.
ATTEMPT_ENDS: Final = frozenset(
    {"completed", "retry", "dead", "failed", "stale", "cancelled", "expired"}
)


def check_settling(histories: Histories) -> Iterator[Violation]:
    """Check every end in every journal, and every stored outcome."""
    stored = {(each.job, each.generation): each for each in histories.outcomes}
    for job, journal in histories.journals.items():
        generation, owner = 0, None
        ends: dict[int, Event] = {}
        yield from _late(histories, journal)
        for event in transitions(journal):
            if owner is not None and event.kind in ATTEMPT_ENDS:
                yield from _by_owner(histories, event, owner)
            generation += event.kind == "retried"
            # Dismissing a dead letter closes an end that is already there.
            if event.state in ENDED and event.kind != "dismissed":
                yield from _once(histories, event, ends.get(generation))
                ends[generation] = event
                yield from _outcome(histories, event, stored.get((job, generation)))
            if event.kind == "started":
                owner = event.fence
            elif event.state != "active":
                owner = None


def _by_owner(histories: Histories, event: Event, owner: str) -> Iterator[Violation]:
    job = event.job
    if event.fence != owner:
        text = f"{job} was settled by {event.fence}; the last to start was {owner}"
        yield about(histories, _RULE, text, job, at=event.seq)
        return
    error = event.data.get("error")
    if error and error[0] == "exception" and owner not in error[1]:
        text = f"{job}: the error of another attempt was taken for that of {owner}"
        yield about(histories, _RULE, text, job, at=event.seq)
    if event.kind != "completed":
        return
    runs = histories.runs_by_fence.get(owner, [])
    if not any(run.how == "returned" for run in runs):
        text = f"{job} was completed by {owner}, whose handler never returned"
        yield about(histories, _RULE, text, job, at=event.seq)


def _late(histories: Histories, journal: list[Event]) -> Iterator[Violation]:
    """Refuse a journal that calls an owner late, or lets one settle that was late."""
    owner: str | None = None
    late: set[str | None] = set()
    for event in journal:
        if event.version == 0 and event.fence == owner:
            text = f"{event.job}: {owner} was called late while it was the owner"
            yield about(histories, _RULE, text, event.job, at=event.seq)
        if event.version == 0:
            late.add(event.fence)
            continue
        if event.fence is not None and event.fence in late:
            text = f"{event.job}: {event.fence} was late, and yet it did something afterwards"
            yield about(histories, _RULE, text, event.job, at=event.seq)
        owner = event.fence if event.state == "active" else None


def _once(histories: Histories, event: Event, before: Event | None) -> Iterator[Violation]:
    if before is not None:
        text = f"{event.job} ended twice: {before.kind} and {event.kind}"
        yield about(histories, _RULE, text, event.job, at=event.seq)


def _outcome(histories: Histories, event: Event, outcome: Outcome | None) -> Iterator[Violation]:
    if outcome is None:
        text = f"{event.job} ended as {event.state} and no outcome was stored"
        yield about(histories, _RULE, text, event.job, at=event.seq)
        return
    if event.kind == "completed" and outcome.result != {"by": event.fence}:
        text = f"{event.job} was completed by {event.fence}, but its result is {outcome.result}"
        yield about(histories, _RULE, text, event.job, at=event.seq)
