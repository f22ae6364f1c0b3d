"""C9: nothing starts early, by the engine's clock and by the world's.

The engine's: no `started` before `run_at`, none after the deadline. The world's: no handler begins
before the delay its producer asked for has passed since the producer asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.harness.faults.checker.histories import Histories, transitions
from tests.harness.faults.checker.violations import Violation, about, show_op, show_run

_RULE = "C9 no early start"
#: The engine waits by the wall clock, the logs count since boot: the two may drift a little.
_DRIFT: Final = 5_000_000


def check_timing(histories: Histories) -> Iterator[Violation]:
    """Check every start."""
    yield from _by_the_engine(histories)
    yield from _by_the_world(histories)


def _by_the_engine(histories: Histories) -> Iterator[Violation]:
    for job, journal in histories.journals.items():
        run_at = 0
        row = histories.rows.get(job)
        deadline = row.deadline_at if row is not None else None
        for event in transitions(journal):
            if event.kind in ("created", "retry", "retried"):
                run_at = event.data.get("run_at", event.at)
            elif event.kind == "started" and event.at < run_at:
                text = f"{job} started {run_at - event.at} µs before its time"
                yield about(histories, _RULE, text, job, at=event.seq)
            elif event.kind == "started" and deadline is not None and event.at > deadline:
                text = f"{job} started {event.at - deadline} µs after its deadline"
                yield about(histories, _RULE, text, job, at=event.seq)


def _by_the_world(histories: Histories) -> Iterator[Violation]:
    delayed = {hashed: op for op in histories.ops if op.delay for hashed in op.hashes}
    for run in histories.runs:
        row = histories.rows.get(run.job)
        op = delayed.get(row.hash) if row is not None else None
        if op is not None and run.began < op.t + op.delay - _DRIFT:
            early = (op.t + op.delay - run.began) / 1e6
            text = f"the handler of {run.job} began {early:.1f} ms before its delay was over"
            yield Violation(_RULE, text, (show_op(op), show_run(run)))
