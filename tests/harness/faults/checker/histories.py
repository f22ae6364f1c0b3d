"""The histories as values; `reading.py` makes them from plain JSON lines.

Two clocks, never mixed: `at` is engine time (microseconds of the wall clock, as the journal has
it), `t` is real time (nanoseconds since boot, as client, handlers and nemesis saw it). Order in the
engine is `seq`, the order of commits, so no rule has to compare the two; what was done to processes
and servers is told on both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Op:
    """One call of a producer: several jobs asked for at once, and the answer if one came."""

    name: str
    t: int
    #: What was asked for, by the hash of each payload (payloads are unique).
    hashes: tuple[str, ...]
    #: Nanoseconds the jobs had to wait at least.
    delay: int = 0
    #: The ids that were acknowledged, in the order of the hashes; None if no answer came.
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a handler, as the handler itself recorded it."""

    job: str
    fence: str
    attempt: int
    pid: int
    kind: str
    key: str | None
    began: int
    #: When it ended, and how; None if it never said so.
    ended: int | None = None
    how: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's journal. Version 0 is a note."""

    seq: int
    job: str
    version: int
    kind: str
    state: str
    at: int
    attempt: int
    fence: str | None = None
    data: Json = field(default_factory=dict)

    @property
    def error_code(self) -> str | None:
        """Why the attempt ended badly, if it did."""
        error = self.data.get("error")
        return error[0] if error else None


@dataclass(frozen=True, slots=True)
class Row:
    """A job as the database has it at the end."""

    id: str
    #: Hash of the payload as stored.
    hash: str
    #: What the head says: state, version, counters, fence, times, error.
    head: Json
    key: str | None = None
    max_active: int = 1
    max_attempts: int = 5
    max_crashes: int = 3
    deadline_at: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one generation of a job ended, as stored."""

    job: str
    generation: int
    state: str
    result: Any = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a key that is still taken."""

    key_hash: str
    job: str | None
    fence: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of the projection that was kept, which one made from nothing does not have so."""

    table: str
    row: str
    kept: str
    rebuilt: str


@dataclass(frozen=True, slots=True)
class Session:
    """A worker process's epoch: the first half of its fences, and its process."""

    id: str
    pid: int
    #: How long it lasts without being renewed, in microseconds, and when it last was.
    lease: int = 0
    renewed_at: int = 0


#: What is done to servers: to one (killed, stopped at once, connections cut), to nodes of a cluster
#: (the leader killed, one told to stop, two or all killed), to the admin runtime (killed).
ServerFault: TypeAlias = Literal[
    "server_kill", "server_stop", "cut", "leader_kill", "node_stop", "quorum_kill", "all_kill",
    "admin_kill",
]  # fmt: skip
FaultKind: TypeAlias = Literal["kill", "stop", "pause", "term", "crash", "cut_off"] | ServerFault
#: Faults that keep every worker from writing for a while; nothing is written to disk in order. A
#: cluster without the leader of a stream writes nothing to it until it has another one.
OUTAGES: Final = frozenset({"server_kill", "server_stop", "leader_kill", "quorum_kill", "all_kill"})


@dataclass(frozen=True, slots=True)
class Fault:
    """Something done to processes: killed, stopped (or paused for a moment), told to stop.

    Or to their way to the server alone: cut off for a while, and nobody else is.
    Or to the server: killed, stopped at once (both until it was back), its connections cut; to
    nodes of a cluster, or to the admin runtime (`ServerFault`), until all of them were back.
    """

    kind: FaultKind
    t: int
    #: The worker processes that were hit, directly or by the end of their guardian.
    pids: tuple[int, ...]
    target: str = ""
    #: stop, pause, cut_off: when they went on; kill, term: when the last was gone.
    until: int | None = None
    #: term: how long handlers had, in nanoseconds.
    grace: int = 0
    #: term: how long those who had to act stood in line for a processor meanwhile.
    held_up: int = 0
    #: The same moments as engines tell the time; None if nobody knows.
    began_at: int | None = None
    ended_at: int | None = None

    @property
    def last_moment(self) -> int:
        """When it was over, or at least when it began."""
        return self.t if self.until is None else self.until


@dataclass(frozen=True)
class Histories:
    """Everything that is known about a run."""

    ops: list[Op] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    #: In what the projection that was kept differs from one made from nothing.
    differences: list[Difference] = field(default_factory=list)

    @cached_property
    def journals(self) -> dict[str, list[Event]]:
        """The events of each job, in the order of their commits."""
        journals: dict[str, list[Event]] = defaultdict(list)
        for event in sorted(self.events, key=lambda event: event.seq):
            journals[event.job].append(event)
        return dict(journals)

    @cached_property
    def runs_by_fence(self) -> dict[str, list[Run]]:
        """The runs of each attempt; there should be one at most."""
        runs: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.began):
            runs[run.fence].append(run)
        return dict(runs)

    @cached_property
    def faults_by_pid(self) -> dict[int, list[Fault]]:
        """What was done to each process."""
        faults: dict[int, list[Fault]] = defaultdict(list)
        for fault in sorted(self.faults, key=lambda fault: fault.t):
            for pid in fault.pids:
                faults[pid].append(fault)
        return dict(faults)

    def pid_of(self, fence: str | None) -> int | None:
        """Return the process an attempt belongs to: its session's, or who ran it."""
        if fence is None:
            return None
        session = self.sessions.get(fence[:16])
        if session is not None:
            return session.pid
        runs = self.runs_by_fence.get(fence)
        return runs[0].pid if runs else None

    @cached_property
    def first_runs(self) -> dict[str, int]:
        """When the first handler of each session began."""
        first: dict[str, int] = {}
        for run in self.runs:
            session = run.fence[:16]
            first[session] = min(run.began, first.get(session, run.began))
        return first

    def faults_on(self, fence: str | None, *, pauses: bool = False) -> list[Fault]:
        """Return what was done to the processes of an attempt since its session began to work.

        Its handler may have run in a process of its own beside that of its session. A pause is too
        short to excuse anything but a coincidence, so it is left out unless asked for.
        """
        if fence is None:
            return []
        pids = {run.pid for run in self.runs_by_fence.get(fence, [])} | {self.pid_of(fence)}
        since = self.first_runs.get(fence[:16], 0)
        faults = [fault for pid in pids if pid for fault in self.faults_by_pid.get(pid, [])]
        return sorted(
            (
                each
                for each in faults
                if (pauses or each.kind != "pause") and each.last_moment >= since
            ),
            key=lambda fault: fault.t,
        )

    def faults_before(self, event: Event) -> list[Fault]:
        """Return what had been done to an attempt's processes when this was said about it."""
        return [
            fault
            for fault in self.faults_on(event.fence)
            if fault.began_at is None or fault.began_at <= event.at
        ]

    @cached_property
    def outages(self) -> list[Fault]:
        """When the whole server was away."""
        return [fault for fault in self.faults if fault.kind in OUTAGES]

    def outage_behind(self, event: Event) -> Fault | None:
        """Return the outage since which a lost attempt's session had not been heard, if any.

        The session was alive when the server went, and had not been renewed when it was back. One
        that was heard again and then fell silent did so for reasons of its own.
        """
        session = self.sessions.get((event.fence or "")[:16])
        if session is None:
            return None
        for outage in self.outages:
            began, ended = outage.began_at or 0, outage.ended_at or event.at
            was_alive = session.renewed_at + session.lease >= began
            if began <= event.at and was_alive and session.renewed_at < ended:
                return outage
        return None


def transitions(journal: Iterable[Event]) -> list[Event]:
    """Return the events that changed something."""
    return [event for event in journal if event.version]
