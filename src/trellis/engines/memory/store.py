"""The data of the memory engine: entries of jobs with their journals, sessions and queues.

Rows are numbered in creation order. `Store` has the dictionaries and answers the questions that
several verbs ask about them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trellis.core.admission import Facts
from trellis.core.durations import Instant, Micros
from trellis.core.events import Event, late_result
from trellis.core.job import Definition, Fence, Head, JobId, JobRecord, NewJob, SessionId, define
from trellis.core.lifecycle import Transition, creation, first_run_at
from trellis.core.states import ENDED, State
from trellis.core.timers import keep_until, look_at
from trellis.engines.clock import Clock
from trellis.engines.values import (
    Activity,
    Begun,
    Demand,
    Heartbeat,
    Item,
    LateResult,
    LogEntry,
    LogLine,
    Note,
    NoteResult,
    Outcome,
    Phase,
    Progress,
    QueueSettings,
    SessionRecord,
    WorkerInfo,
)

#: Whether a live job can be claimed: yes, not before its run time, not without a slot, or no more.
Availability = Literal["ready", "scheduled", "waiting_for_slot", "claimed"]
#: Service, queue and type: what a demand names.
Lane = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class Entry:
    """One job with its journal, outcomes, activity and log lines."""

    definition: Definition
    head: Head
    journal: list[Event]
    availability: Availability | None
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
        """The lane the job waits in."""
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

    def note(self, note: Note, now: Instant, log_number: int) -> NoteResult:
        """Store a note if its fence holds; journal a late result if it does not."""
        is_held = self.head.fence == note.fence
        if isinstance(note.body, LateResult):
            if is_held:
                return NoteResult.STALE
            data = {"command": note.body.command, "detail": note.body.detail}
            self.journal.append(late_result(self.head, now, note.fence, data))
            return NoteResult.NOTED
        if not is_held:
            return NoteResult.STALE
        if self.definition.policy.activity_timeout is not None:
            self.seen_at = now
        if isinstance(note.body, LogLine):
            self.logs.append(LogEntry(log_number, now, note.claim, *note.body))
        self.activity = _updated(self.activity, note, now)
        return NoteResult.NOTED

    def record_outcome(self, transition: Transition) -> None:
        """Store how this generation ended."""
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


def _updated(activity: Activity | None, note: Note, now: Instant) -> Activity:
    """Return the activity of the note's attempt with the note in it."""
    if activity is None or activity.claim != note.claim:
        activity = Activity(note.claim, None, None, None, None, ())
    activity = activity._replace(seen_at=now)
    match note.body:
        case Begun(at):
            return activity._replace(began_at=at)
        case Progress() as progress:
            return activity._replace(progress=progress)
        case Phase(name):
            return activity._replace(phase=name, progress=None, items=())
        case Item() as item:
            others = [each for each in activity.items if each.name != item.name]
            items = sorted([*others, item], key=lambda each: each.name)
            return activity._replace(items=tuple(items))
        case Heartbeat() | LogLine() | LateResult():
            return activity


@dataclass(slots=True)
class SessionState:
    """The session of one worker process."""

    info: WorkerInfo
    lease: Micros
    opened_at: Instant
    renewed_at: Instant
    #: The end of the lease: lease clock, in the boot named beside it.
    lease_until: int
    boot_id: str
    ended_at: Instant | None = None
    busy: int = 0
    draining: bool = False


class ReadyLanes:
    """Claimable jobs by lane, best first; the reader skips jobs that are no longer ready."""

    def __init__(self) -> None:
        self._heaps: dict[Lane, list[tuple[int, int]]] = {}

    def add(self, entry: Entry) -> None:
        """Add a job that became ready to its lane."""
        best = (-entry.definition.priority, entry.definition.row)
        heapq.heappush(self._heaps.setdefault(entry.lane, []), best)

    def in_order(self, lanes: list[Lane]) -> Iterator[tuple[Lane, int]]:
        """Yield and remove jobs of these lanes: by priority, then in creation order.

        The caller may drop a lane from `lanes` while iterating; the rest of that lane stays.
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


class Store:
    """All data of the engine except slots and locks."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.entries: dict[int, Entry] = {}
        self.rows: dict[JobId, int] = {}
        self.dedupe: dict[tuple[str, str, str], int] = {}
        self.idempotency: dict[tuple[str, str, str], int] = {}
        self.sessions: dict[SessionId, SessionState] = {}
        self.queues: dict[tuple[str, str], QueueSettings] = {}
        self.removed: dict[JobId, State] = {}
        #: Rows of jobs before their run time, and rows of all jobs of a key: saves scanning all.
        self.scheduled: set[int] = set()
        self.keyed: dict[str, set[int]] = {}
        self.last_log = 0
        self._last_row = 0
        self.lanes = ReadyLanes()

    # -- jobs ----------------------------------------------------------------------------------

    def by_id(self, job_id: JobId) -> Entry | None:
        """Return the entry of a public id."""
        row = self.rows.get(job_id)
        return None if row is None else self.entries[row]

    def facts(self, new: NewJob) -> Facts:
        """Gather what admission must know about a new job, except its key."""
        scope = (new.service, new.type)
        same_id = same_idempotency = same_dedupe = None
        if (same := self.by_id(new.id)) is not None:
            stored = same.definition
            same_id = (stored.service, stored.type, stored.payload)
        if new.idempotency_key is not None:
            row = self.idempotency.get((*scope, new.idempotency_key))
            if row is not None:
                stored = self.entries[row].definition
                same_idempotency = (stored.id, stored.payload)
        if new.dedupe is not None:
            row = self.dedupe.get((*scope, new.dedupe))
            if row is not None:
                same_dedupe = self.entries[row].definition.id
        draining = self.queue(new.service, new.queue).draining
        return Facts(same_id, same_idempotency, same_dedupe, draining)

    def insert(self, new: NewJob, now: Instant) -> Entry:
        """Store an admitted job."""
        self._last_row += 1
        definition = define(new, self._last_row, now)
        event, head = creation(now, first_run_at(new, now))
        scope = (new.service, new.type)
        entry = Entry(
            definition,
            head,
            [event],
            None,
            None if new.dedupe is None else (*scope, new.dedupe),
            None if new.idempotency_key is None else (*scope, new.idempotency_key),
        )
        self.entries[definition.row] = entry
        self.rows[new.id] = definition.row
        if new.key_hash is not None:
            self.keyed.setdefault(new.key_hash, set()).add(definition.row)
        if entry.dedupe is not None:
            self.dedupe[entry.dedupe] = definition.row
        if entry.idempotency is not None:
            self.idempotency[entry.idempotency] = definition.row
        return entry

    def drop(self, entry: Entry) -> None:
        """Remove an ended job and record its removal."""
        definition = entry.definition
        del self.entries[definition.row], self.rows[definition.id]
        if entry.idempotency is not None:
            self.idempotency.pop(entry.idempotency, None)
        if definition.key_hash is not None:
            self.keyed[definition.key_hash].discard(definition.row)
        self.removed[definition.id] = entry.head.state

    # -- sessions and queues -------------------------------------------------------------------

    def is_past(self, until: int, boot_id: str) -> bool:
        """Return whether a moment of the lease clock, in the named boot, has passed."""
        return boot_id != self.clock.boot_id() or until <= self.clock.lease_now()

    def is_lapsed(self, state: SessionState) -> bool:
        """Return whether the lease of an open session has lapsed."""
        return self.is_past(state.lease_until, state.boot_id)

    def is_over(self, session: SessionId) -> bool:
        """Return whether a session has ended."""
        state = self.sessions.get(session)
        return state is None or state.ended_at is not None

    def linger_until(self, fence: Fence | None) -> int | None:
        """Return until when slots and locks of this attempt linger; None if its session ended."""
        state = self.sessions.get(fence.session) if fence else None
        if state is None or state.ended_at is not None:
            return None
        return self.clock.lease_now() + state.lease

    def held_by(self, session: SessionId) -> list[Entry]:
        """Return the entries this session has claimed, in creation order."""
        return [
            entry
            for _, entry in sorted(self.entries.items())
            if entry.head.fence is not None and entry.head.fence.session == session
        ]

    def session_record(self, session: SessionId, state: SessionState) -> SessionRecord:
        """Return a session as operators see it."""
        return SessionRecord(
            session,
            state.info,
            state.opened_at,
            state.renewed_at,
            state.lease,
            state.ended_at is None and self.is_lapsed(state),
            state.ended_at,
            len(self.held_by(session)),
            state.busy,
            state.draining,
        )

    def drop_sessions(self, ended: Instant, limit: int) -> int:
        """Remove sessions that ended at or before this moment, the earliest first."""
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

    def queue(self, service: str, queue: str) -> QueueSettings:
        """Return the settings of a queue."""
        return self.queues.get((service, queue)) or QueueSettings(service, queue)

    def open_lanes(self, demands: Sequence[Demand]) -> dict[Lane, int]:
        """Return the demanded lanes of queues that are not paused, with the index of the demand."""
        return {
            (demand.service, demand.queue, job_type): index
            for index, demand in enumerate(demands)
            for job_type in demand.types
            if not self.queue(demand.service, demand.queue).paused
        }

    # -- due -----------------------------------------------------------------------------------

    def lapsed_sessions(self) -> list[SessionId]:
        """Return the open sessions whose lease has lapsed."""
        return [
            session
            for session, state in self.sessions.items()
            if state.ended_at is None and self.is_lapsed(state)
        ]

    def lost(self) -> list[Entry]:
        """Return the claimed jobs whose session has ended."""
        return [
            entry
            for _, entry in sorted(self.entries.items())
            if entry.head.fence is not None
            and not entry.head.blocked
            and self.is_over(entry.head.fence.session)
        ]

    def overdue(self, now: Instant) -> list[Entry]:
        """Return the jobs that the clock may change, the longest overdue first."""
        moments = ((entry.look_at, row, entry) for row, entry in self.entries.items())
        due = [(moment, row, entry) for moment, row, entry in moments if moment and moment <= now]
        return [entry for _, _, entry in sorted(due, key=lambda each: each[:2])]

    def past_retention(self, now: Instant) -> list[Entry]:
        """Return the jobs that retention no longer keeps, the oldest first."""
        moments = ((entry.keep_until, row) for row, entry in self.entries.items())
        due = sorted((until, row) for until, row in moments if until and until <= now)
        return [self.entries[row] for _, row in due]

    def startable(self, now: Instant) -> list[Entry]:
        """Return the jobs whose run time has come, the longest due first."""
        moments = ((self.entries[row].head.run_at, row) for row in self.scheduled)
        return [self.entries[row] for run_at, row in sorted(moments) if run_at <= now]

    def startable_of(self, lanes: Container[Lane], now: Instant, each: int) -> list[Entry]:
        """Return the same of these lanes, at most this number of each priority."""
        counts: Counter[tuple[Lane, int]] = Counter()
        due = []
        for entry in self.startable(now):
            lane = (entry.lane, entry.definition.priority)
            if entry.lane in lanes and counts[lane] < each:
                counts[lane] += 1
                due.append(entry)
        return due
