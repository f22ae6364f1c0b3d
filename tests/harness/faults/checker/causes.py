"""C13: every second start has a cause, and what was done to the process explains it.

Starts after a failure or a hand-back of unbegun work need no fault. A crash verdict needs a process
that died, and a begun handler is handed back only by a process that was told to stop, died or was
stopped. A lease that lapsed without a fault is counted, not refused: a machine may be that busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.harness.faults.checker.histories import Event, Histories, transitions
from tests.harness.faults.checker.violations import Violation, about

_RULE = "C13 second starts"
_CRASHES: Final = frozenset({"crash", "crash_loop"})
#: Faults that end a process.
_DEADLY: Final = frozenset({"kill", "crash", "term"})


def check_causes(histories: Histories) -> Iterator[Violation]:
    """Explain every lost or handed-back attempt."""
    for job, journal in histories.journals.items():
        for event in transitions(journal):
            text = _unexplained(histories, event)
            if text:
                yield about(histories, _RULE, f"{job}: {text}", job, at=event.seq)


def _unexplained(histories: Histories, event: Event) -> str | None:
    done = {fault.kind for fault in histories.faults_before(event)}
    if event.error_code in _CRASHES and not done & _DEADLY:
        return f"{event.fence} is said to have crashed, but nothing ended its process"
    runs = histories.runs_by_fence.get(event.fence or "", [])
    is_handed_back = event.kind == "retry" and event.error_code is None
    if is_handed_back and runs and not done and runs[0].how != "snoozed":
        return f"{event.fence} was handed back in the middle of its run, for no reason"
    return None


def second_starts(histories: Histories) -> Counter[str]:
    """Count the starts beyond a job's first by why the attempt before had ended."""
    causes: Counter[str] = Counter()
    for journal in histories.journals.values():
        before: Event | None = None
        for event in transitions(journal):
            if event.kind == "started" and before is not None:
                causes[_cause(histories, before)] += 1
            elif event.kind in ("retry", "retried"):
                before = event
    return causes


def _cause(histories: Histories, before: Event) -> str:
    if before.kind == "retried":
        return "an operator"
    code = before.error_code
    if code is not None and code not in (*_CRASHES, "lease_lost"):
        return f"handler: {code}"
    what = "handed back" if code is None else code.replace("_", " ")
    faults = histories.faults_before(before)
    if faults:  # a session rarely survives the first thing that is done to its process
        return f"{what} after {faults[0].kind}"
    row = histories.rows.get(before.job)
    is_keyed = row is not None and row.key is not None
    return f"{what}, {'keyed, ' if is_keyed else ''}no fault of its process"
