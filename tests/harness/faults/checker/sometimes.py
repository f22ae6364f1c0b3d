"""What must have happened for a run to prove anything, counted from the histories themselves.

A campaign that never saw a takeover proves nothing about takeovers. A SIGKILL counts if a handler
of the victim was in flight, a zombie (a session) if a result of the stopped and resumed process was
refused in the journal, a SIGTERM if a handler was stuck until the end, a server crash if handlers
anywhere outlived it, an outage if it outlasted the lease of every session, and a worker cut off
from the server if that outlasted its lease while a handler ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tests.harness.faults.checker.histories import Event, Fault, Histories, Run, transitions
from tests.harness.faults.checker.states import LATE

KILLS: Final = "SIGKILLs with work in flight"
ZOMBIES: Final = "zombies whose late settlement was refused"
STUCK: Final = "SIGTERMs with a stuck handler"
TAKEOVERS: Final = "takeovers of a keyed job"
CRASHES: Final = "server crashes with work in flight"
LONG_OUTAGES: Final = "outages longer than the lease"
CUT_OFFS: Final = "workers cut off for longer than the lease"

#: What a run must have seen at least.
LEAST: Final = {KILLS: 30, ZOMBIES: 10, STUCK: 5, TAKEOVERS: 1}
LEAST_WITH_SERVER: Final = {**LEAST, CRASHES: 5, LONG_OUTAGES: 1, CUT_OFFS: 2}


def count_sometimes(histories: Histories) -> dict[str, int]:
    """Count what must sometimes happen."""
    runs: dict[int, list[Run]] = {}
    for run in histories.runs:
        runs.setdefault(run.pid, []).append(run)
    return {
        KILLS: sum(_in_flight(fault, runs) for fault in _of(histories, "kill")),
        ZOMBIES: len(_zombies(histories)),
        STUCK: sum(_stuck(fault, runs) for fault in _of(histories, "term")),
        TAKEOVERS: sum(1 for _ in _takeovers(histories)),
        CRASHES: sum(_outlived(fault, histories.runs) for fault in histories.outages),
        LONG_OUTAGES: sum(_is_long(fault, histories) for fault in histories.outages),
        CUT_OFFS: sum(
            _is_long(fault, histories) and _in_flight(fault, runs)
            for fault in _of(histories, "cut_off")
        ),
    }


def too_few(counted: Mapping[str, int], least: Mapping[str, int]) -> dict[str, int]:
    """Return what has been seen too rarely, and how many are missing."""
    missing = {what: number - counted[what] for what, number in least.items()}
    return {what: number for what, number in missing.items() if number > 0}


def _of(histories: Histories, kind: str) -> list[Fault]:
    return [fault for fault in histories.faults if fault.kind == kind]


def _in_flight(fault: Fault, runs: dict[int, list[Run]]) -> bool:
    return any(
        run.began < fault.t and (run.ended is None or run.ended > fault.t)
        for pid in fault.pids
        for run in runs.get(pid, [])
    )


def _outlived(fault: Fault, runs: list[Run]) -> bool:
    """Tell whether a handler began before and ended after; one that never did may be dead."""
    return any(run.began < fault.t and run.ended and run.ended > fault.t for run in runs)


def _is_long(outage: Fault, histories: Histories) -> bool:
    lease = max((session.lease for session in histories.sessions.values()), default=0)
    return outage.until is not None and outage.until - outage.t > lease * 1000


def _stuck(fault: Fault, runs: dict[int, list[Run]]) -> bool:
    return any(
        run.kind == "stuck" and run.began < fault.t and run.ended is None
        for pid in fault.pids
        for run in runs.get(pid, [])
    )


def _zombies(histories: Histories) -> set[str]:
    """Return the sessions with a refused result that came after a stop of their process."""
    zombies: set[str] = set()
    for event in histories.events:
        if event.kind != LATE or event.fence is None:
            continue
        for run in histories.runs_by_fence.get(event.fence, []):
            stops = (f for f in histories.faults_by_pid.get(run.pid, []) if f.kind == "stop")
            if any(f.until and run.ended and f.until < run.ended for f in stops):
                zombies.add(event.fence[:16])
    return zombies


def _takeovers(histories: Histories) -> Iterator[Event]:
    """Return the starts of keyed jobs that another session had lost."""
    for job, journal in histories.journals.items():
        row = histories.rows.get(job)
        lost: str | None = None
        for event in transitions(journal) if row is not None and row.key is not None else ():
            if event.kind == "retry":
                is_lost = event.error_code in ("lease_lost", "crash")
                lost = event.fence if is_lost else None
            elif event.kind == "started" and lost is not None and event.fence is not None:
                if event.fence[:16] != lost[:16]:
                    yield event
                lost = None
