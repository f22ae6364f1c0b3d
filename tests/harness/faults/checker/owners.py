"""C3: one owner at a time, and no handler runs without being one.

In engine order an attempt starts only after the one before has ended. A handler's run belongs to
exactly one started attempt of its job, and an attempt is run once.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.faults.checker.histories import Event, Histories, Run, transitions
from tests.harness.faults.checker.violations import Violation, about, show_run

_RULE = "C3 single owner"


def check_owners(histories: Histories) -> Iterator[Violation]:
    """Check owners in the journals, then the runs against them."""
    starts: dict[str, Event] = {}
    for job, journal in histories.journals.items():
        owner: str | None = None
        for event in transitions(journal):
            if event.kind == "started":
                yield from _taken(histories, job, event, owner, starts)
            owner = event.fence if event.state == "active" else None
    for fence, runs in histories.runs_by_fence.items():
        yield from _ran(histories, fence, runs, starts)


def _taken(
    histories: Histories, job: str, event: Event, owner: str | None, starts: dict[str, Event]
) -> Iterator[Violation]:
    fence = event.fence
    if owner is not None:
        text = f"{job}: attempt {fence} started while {owner} was the owner"
        yield about(histories, _RULE, text, job, at=event.seq)
    if fence is None:
        yield about(histories, _RULE, f"{job} started without a fence", job, at=event.seq)
        return
    if fence in starts:
        text = f"fence {fence} was given out twice"
        yield about(histories, _RULE, text, starts[fence].job, job)
    starts[fence] = event


def _ran(
    histories: Histories, fence: str, runs: list[Run], starts: dict[str, Event]
) -> Iterator[Violation]:
    witness = tuple(map(show_run, runs[:3]))
    start = starts.get(fence)
    if start is None:
        text = f"a handler of {runs[0].job} ran as attempt {fence}, which never started"
        yield Violation(_RULE, text, witness)
        return
    for run in runs:
        if run.job != start.job:
            text = f"attempt {fence} of {start.job} ran the handler of {run.job}"
            yield Violation(_RULE, text, witness)
    if len(runs) > 1:
        text = f"attempt {fence} of {start.job} was run {len(runs)} times"
        yield about(histories, _RULE, text, start.job, at=start.seq)
