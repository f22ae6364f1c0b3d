"""What the memory engine remembers: one mutable entry per job, and where waiting jobs stand."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from trellis.core.durations import Instant, Micros
from trellis.core.events import Event
from trellis.core.job import Definition, Head, JobId, JobRecord, SessionId
from trellis.core.lifecycle import Transition
from trellis.core.states import ENDED, State
from trellis.core.timers import keep_until, look_at
from trellis.engines.values import Activity, LogEntry, Outcome, WorkerInfo

#: Where a live job stands: claimable, before its time, waiting for its key, or leased.
Park = Literal["ready", "later", "slot", "taken"]
Lane = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class Entry:
    """One job and everything known about it."""

    definition: Definition
    head: Head
    journal: list[Event]
    park: Park | None
    dedupe: tuple[str, str, str] | None
    idempotency: tuple[str, str, str] | None
    seen_at: Instant | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    activity: Activity | None = None
    logs: list[LogEntry] = field(default_factory=list)

    @property
    def record(self) -> JobRecord:
        """The job as a value."""
        return JobRecord(self.definition, self.head)

    @property
    def lane(self) -> Lane:
        """What a demand names."""
        definition = self.definition
        return definition.service, definition.queue, definition.type

    @property
    def look_at(self) -> Instant | None:
        """When the clock may change this job."""
        if self.head.state in ENDED:
            return None
        return look_at(self.definition, self.head, self.seen_at)

    @property
    def keep_until(self) -> Instant | None:
        """When retention may remove this job."""
        return keep_until(self.definition, self.head)

    def record_outcome(self, transition: Transition) -> None:
        """Keep how this generation ended."""
        head, command = transition.head, transition.command
        if head.finished_at is None:
            return
        if head.state is State.DISMISSED:
            last = self.outcomes[-1]
            self.outcomes[-1] = last._replace(state=head.state, finished_at=head.finished_at)
            return
        self.outcomes.append(
            Outcome(
                head.generation,
                head.state,
                head.attempt,
                getattr(command, "started_at", None),
                head.finished_at,
                getattr(command, "result", None),
                head.error,
            )
        )


@dataclass(slots=True)
class SessionState:
    """One worker process's epoch."""

    info: WorkerInfo
    lease: Micros
    opened_at: Instant
    renewed_at: Instant
    lease_until: int
    boot_id: str
    ended_at: Instant | None = None
    busy: int = 0
    draining: bool = False


class ReadyLanes:
    """Claimable jobs by (service, queue, type), best first; entries are dropped lazily."""

    def __init__(self) -> None:
        self._heaps: dict[Lane, list[tuple[int, int]]] = {}

    def add(self, entry: Entry) -> None:
        """Put a job that became ready into its lane."""
        best = (-entry.definition.priority, entry.definition.row)
        heapq.heappush(self._heaps.setdefault(entry.lane, []), best)

    def in_order(self, lanes: list[Lane]) -> Iterator[tuple[Lane, int]]:
        """Yield and remove jobs of these lanes: by priority, then in creation order.

        A lane may be dropped from `lanes` while iterating; what was not yielded stays.
        """
        while True:
            best = min(
                ((self._heaps[lane][0], lane) for lane in lanes if self._heaps.get(lane)),
                default=None,
            )
            if best is None:
                return
            lane = best[1]
            _, row = heapq.heappop(self._heaps[lane])
            yield lane, row


@dataclass(slots=True)
class Tables:
    """All data of the engine."""

    entries: dict[int, Entry] = field(default_factory=dict)
    rows: dict[JobId, int] = field(default_factory=dict)
    dedupe: dict[tuple[str, str, str], int] = field(default_factory=dict)
    idempotency: dict[tuple[str, str, str], int] = field(default_factory=dict)
    sessions: dict[SessionId, SessionState] = field(default_factory=dict)
    removed: dict[JobId, State] = field(default_factory=dict)
    #: Rows of jobs before their time, and rows of all jobs of a key: so that nothing scans it all.
    later: set[int] = field(default_factory=set)
    keyed: dict[str, set[int]] = field(default_factory=dict)
    last_row: int = 0
    last_log: int = 0

    def by_id(self, job_id: JobId) -> Entry | None:
        """Return the entry of a public id."""
        row = self.rows.get(job_id)
        return None if row is None else self.entries[row]

    def held_by(self, session: SessionId) -> list[Entry]:
        """Return the entries this session has leased, in creation order."""
        return [
            entry
            for _, entry in sorted(self.entries.items())
            if entry.head.fence is not None and entry.head.fence.session == session
        ]

    def drop_sessions(self, ended: Instant, limit: int) -> int:
        """Remove sessions that have been over since before this moment, the longest over first."""
        over = [
            (state.ended_at, session)
            for session, state in self.sessions.items()
            if state.ended_at is not None and state.ended_at <= ended
        ]
        # Sessions are in the order they were opened, which a stable sort keeps.
        oldest = sorted(over, key=lambda each: each[0])[:limit]
        for _, session in oldest:
            del self.sessions[session]
        return len(oldest)

    def drop(self, entry: Entry) -> None:
        """Remove an ended job, leaving a record of it."""
        definition = entry.definition
        del self.entries[definition.row], self.rows[definition.id]
        if entry.idempotency is not None:
            self.idempotency.pop(entry.idempotency, None)
        if definition.key_hash is not None:
            self.keyed[definition.key_hash].discard(definition.row)
        self.removed[definition.id] = entry.head.state
