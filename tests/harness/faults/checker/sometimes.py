"""What must have happened for a run to prove anything, counted from the histories themselves.

A campaign that never saw a takeover proves nothing about takeovers. A SIGKILL counts if a handler
of the victim was in flight (of a guardian: if one of its child was), a zombie (a session) if a
result of the stopped and resumed process was refused in the journal, a SIGTERM if a handler was
stuck until the end, a server crash if handlers anywhere outlived it, an outage if it outlasted the
lease of every session, and a worker cut off from the server if that outlasted its lease while a
handler ran. A killed or stopped node of a cluster counts if handlers outlived that, lost quorum if
it also outlasted the lease, and a killed admin runtime always.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tests.harness.faults.checker.histories import Event, Fault, Histories, Run, transitions
from tests.harness.faults.checker.states import LATE

KILLS: Final = "SIGKILLs with work in flight"
GUARDIAN_KILLS: Final = "SIGKILLs of a guardian with work in flight"
ZOMBIES: Final = "zombies whose late settlement was refused"
STUCK: Final = "SIGTERMs with a stuck handler"
TAKEOVERS: Final = "takeovers of a keyed job"
CRASHES: Final = "server crashes with work in flight"
LONG_OUTAGES: Final = "outages longer than the lease"
CUT_OFFS: Final = "workers cut off for longer than the lease"
LEADER_KILLS: Final = "kills of the leader of a stream with work in flight"
NODE_STOPS: Final = "SIGTERMs of a node with work in flight"
QUORUM_LOSSES: Final = "losses of the quorum for longer than the lease"
FULL_OUTAGES: Final = "kills of all nodes with work in flight"
ADMIN_KILLS: Final = "kills of the admin runtime"

#: What a run must have seen at least.
LEAST: Final = {KILLS: 30, ZOMBIES: 10, STUCK: 5, TAKEOVERS: 1}
LEAST_WITH_SERVER: Final = {**LEAST, CRASHES: 5, LONG_OUTAGES: 1, CUT_OFFS: 2}
LEAST_WITH_CLUSTER: Final = {
    **LEAST, GUARDIAN_KILLS: 2, LEADER_KILLS: 2, NODE_STOPS: 1, QUORUM_LOSSES: 2, FULL_OUTAGES: 1,
    ADMIN_KILLS: 2,
}  # fmt: skip


def count_sometimes(histories: Histories) -> dict[str, int]:
    """Count what must sometimes happen."""
    runs: dict[int, list[Run]] = {}
    for run in histories.runs:
        runs.setdefault(run.pid, []).append(run)
    return {
        KILLS: sum(_in_flight(fault, runs) for fault in _of(histories, "kill")),
        GUARDIAN_KILLS: sum(
            fault.target == "guardian" and _in_flight(fault, runs)
            for fault in _of(histories, "kill")
        ),
        ZOMBIES: len(_zombies(histories)),
        STUCK: sum(_stuck(fault, runs) for fault in _of(histories, "term")),
        TAKEOVERS: sum(1 for _ in _takeovers(histories)),
        CRASHES: sum(_outlived(fault, histories.runs) for fault in histories.outages),
        LONG_OUTAGES: sum(_is_long(fault, histories) for fault in histories.outages),
        CUT_OFFS: sum(
            _is_long(fault, histories) and _in_flight(fault, runs)
            for fault in _of(histories, "cut_off")
        ),
        LEADER_KILLS: _number_outlived(histories, "leader_kill"),
        NODE_STOPS: _number_outlived(histories, "node_stop"),
        QUORUM_LOSSES: sum(
            _is_long(fault, histories) and _outlived(fault, histories.runs)
            for fault in _of(histories, "quorum_kill")
        ),
        FULL_OUTAGES: _number_outlived(histories, "all_kill"),
        ADMIN_KILLS: len(_of(histories, "admin_kill")),
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


def _number_outlived(histories: Histories, kind: str) -> int:
    return sum(_outlived(fault, histories.runs) for fault in _of(histories, kind))


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
