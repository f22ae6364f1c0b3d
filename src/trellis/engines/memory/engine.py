"""The memory engine: every verb of the port, in the plainest way that is right.

All verbs run to their end under one lock, so each is atomic, from any thread.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Container, Sequence

from trellis.core.admission import check_new_job
from trellis.core.commands import Claim
from trellis.core.durations import Instant, Micros
from trellis.core.job import Fence, JobId, JobRecord, NewJob, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.slots import may_run_on
from trellis.core.states import ENDED, WAITING, State
from trellis.engines.clock import Clock, SystemClock
from trellis.engines.hints import Hints
from trellis.engines.memory.admitting import Admitting
from trellis.engines.memory.entries import Entry, Lane, ReadyLanes, SessionState, Tables
from trellis.engines.memory.locking import Lock, Locking
from trellis.engines.memory.noting import Noting
from trellis.engines.memory.reading import Reading
from trellis.engines.memory.slots import Slot, Slots
from trellis.engines.values import (
    KEEP_SESSIONS,
    Capabilities,
    Claimed,
    CommitResult,
    Committed,
    Conflict,
    CreateResult,
    Demand,
    Due,
    DueJob,
    DueKind,
    Health,
    QueueSettings,
    Removal,
    Renewed,
    Session,
    SessionLost,
    SessionRecord,
    Topic,
    WorkerInfo,
)


class MemoryEngine(Admitting, Locking, Noting, Reading):
    """Jobs in dictionaries."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._tables = Tables()
        self._lanes = ReadyLanes()
        self._slots = Slots(self._tables, self._lanes)
        self._queues: dict[tuple[str, str], QueueSettings] = {}
        self._locks: dict[str, Lock] = {}
        self._hints = Hints()

    # -- its own life --------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        return Capabilities(durable=False, processes=False)

    async def open(self) -> None:
        """Be ready."""
        self._hints.reopen()

    async def close(self) -> None:
        """End every watch; the jobs stay as long as the engine object does."""
        self._hints.close()

    async def migrate(self) -> tuple[int, int]:
        """There is no schema."""
        return 0, 0

    async def missing_migrations(self) -> Sequence[tuple[int, str]]:
        """There is no schema."""
        return ()

    async def health(self) -> Health:
        """Say what this engine is."""
        return Health("memory", "nothing survives this process", {"jobs": len(self._tables.rows)})

    async def now(self) -> Instant:
        """Return the engine's time."""
        return self._clock.now()

    async def catch_up(self) -> None:
        """Reads always see everything."""

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints."""
        return self._hints.watch(topics)

    # -- the path of a job ---------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        """Admit and store new jobs."""
        return self.create_within(None, jobs)

    def create_within(self, connection: object, jobs: Sequence[NewJob]) -> list[CreateResult]:  # noqa: ARG002
        """Create at once: there is no transaction here that the caller could roll back."""
        with self._lock:
            checked = [check_new_job(new) for new in jobs]
            results = [self._create_one(new) for new in checked]
        self._hints.publish(("ready",))
        return results

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Take due jobs."""
        with self._lock:
            now = self._clock.now()
            state = self._tables.sessions.get(session)
            if state is None or state.ended_at is not None:
                return Claimed(now, ())
            wanted = self._wanted(demands)
            self._promote_due(self._due_of(wanted, now, limit), now)
            return Claimed(now, tuple(self._take(session, demands, wanted, limit)))

    def _wanted(self, demands: Sequence[Demand]) -> dict[Lane, int]:
        """Return the lanes of open queues that are demanded, each with the index of its demand."""
        return {
            (demand.service, demand.queue, job_type): index
            for index, demand in enumerate(demands)
            for job_type in demand.types
            if not self._queue(demand.service, demand.queue).paused
        }

    def _take(
        self, session: SessionId, demands: Sequence[Demand], wanted: dict[Lane, int], limit: int
    ) -> list[JobRecord]:
        now = self._clock.now()
        left = [demand.limit for demand in demands]
        lanes = list(wanted)
        passed_over: list[Entry] = []
        taken: list[JobRecord] = []
        for lane, row in self._lanes.in_order(lanes):
            entry = self._tables.entries.get(row)
            if entry is None or entry.park != "ready":
                continue
            if len(taken) >= limit or left[wanted[lane]] <= 0:
                passed_over.append(entry)
                lanes.remove(lane)
                continue
            decision = _decide_claim(entry, session, now)
            if decision is None:
                passed_over.append(entry)
                continue
            left[wanted[lane]] -= 1
            self._store(entry, decision)
            taken.append(entry.record)
        for entry in passed_over:
            self._lanes.add(entry)
        return taken

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, guarded by version and fence."""
        with self._lock:
            results = [self._commit_one(transition) for transition in transitions]
        self._hints.publish(("ready", "settled"))
        return results

    def _commit_one(self, transition: Transition) -> CommitResult:
        entry = self._tables.entries.get(transition.definition.row)
        if entry is None:
            return Conflict(None)
        before = transition.before
        if entry.head.version != before.version or entry.head.fence != before.fence:
            return Conflict(entry.record)
        if before.state in ENDED and transition.head.state in WAITING:
            refused = self._refuse_revival(entry)
            if refused is not None:
                return refused
        self._store(entry, transition)
        return Committed()

    def _store(self, entry: Entry, transition: Transition) -> None:
        """Write a transition that has passed its guards."""
        head = transition.head
        now = transition.event.at
        entry.journal.append(transition.event)
        entry.head = head
        if entry.dedupe is not None:
            self._tables.dedupe.pop(entry.dedupe, None)
            entry.dedupe = None
        linger_until = self._linger_until(transition)
        self._slots.after(entry, transition, linger_until, self._clock.boot_id())
        if linger_until is not None and may_run_on(transition):
            self._linger_locks(transition, linger_until)
        if head.state is State.ACTIVE:
            entry.park = "taken"
            if transition.event.fence != transition.before.fence:
                entry.seen_at = None
                slot = self._slots.of(entry)
                if slot is not None:
                    slot.fence = head.fence
        elif head.state in ENDED:
            entry.park = None
            self._tables.later.discard(entry.definition.row)
            entry.record_outcome(transition)
        if head.state in WAITING:
            self._slots.park(entry, max(now, self._clock.now()))
        elif entry.definition.key_hash is not None:
            self._slots.hand_over(entry.definition.key_hash)

    def _linger_until(self, transition: Transition) -> int | None:
        fence = transition.before.fence
        session = self._tables.sessions.get(fence.session) if fence else None
        if session is None or session.ended_at is not None:
            return None
        return self._clock.lease_now() + session.lease

    # -- sessions ------------------------------------------------------------------------------

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session."""
        with self._lock:
            session = SessionId(secrets.randbits(62) + 1)
            now = self._clock.now()
            until = self._clock.lease_now() + lease
            self._tables.sessions[session] = SessionState(
                info, lease, now, now, until, self._clock.boot_id()
            )
            return Session(session, lease, now)

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        busy: int = 0,
    ) -> Renewed | SessionLost:
        """Extend the lease."""
        with self._lock:
            now = self._clock.now()
            state = self._tables.sessions.get(session)
            if state is None or state.ended_at is not None:
                return SessionLost(now)
            state.renewed_at = now
            state.lease_until = self._clock.lease_now() + state.lease
            state.boot_id = self._clock.boot_id()
            state.busy = busy
            reported = {fence for fence in stopped if fence.session == session}
            self._drop_outlived_locks(session, reported)
            self._slots.end_lingering(lambda slot: slot.fence in reported)
            ours = {entry.head.fence: entry for entry in self._tables.held_by(session)}
            asked = (
                fence for fence in held if fence in ours and ours[fence].head.asked_at is not None
            )
            lost = (fence for fence in held if fence not in ours)
            unknown = (entry.record for fence, entry in ours.items() if fence not in held)
            return Renewed(now, tuple(asked), tuple(lost), tuple(unknown), state.draining)

    async def close_session(self, session: SessionId) -> None:
        """End a session in order."""
        with self._lock:
            self._end_session(session)

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease is over."""
        with self._lock:
            state = self._tables.sessions.get(session)
            if state is not None and state.ended_at is None and not self._is_lapsed(state):
                return False
            self._end_session(session)
            self._end_lingering_of(session)
            return True

    def _end_session(self, session: SessionId) -> None:
        state = self._tables.sessions.get(session)
        if state is not None and state.ended_at is None:
            state.ended_at = self._clock.now()
            self._drop_locks(lambda lock: lock.session == session and lock.linger_until is None)

    def _end_lingering_of(self, session: SessionId) -> None:
        self._slots.end_lingering(
            lambda slot: slot.fence is not None and slot.fence.session == session
        )
        self._end_lingering_locks(lambda lock: lock.session == session)

    def _is_lapsed(self, state: SessionState) -> bool:
        return self._is_past(state.lease_until, state.boot_id)

    def _is_past(self, until: int, boot_id: str) -> bool:
        return boot_id != self._clock.boot_id() or until <= self._clock.lease_now()

    async def sessions(self) -> list[SessionRecord]:
        """List sessions, the newest first."""
        with self._lock:
            return [
                SessionRecord(
                    session,
                    state.info,
                    state.opened_at,
                    state.renewed_at,
                    state.lease,
                    state.ended_at is None and self._is_lapsed(state),
                    state.ended_at,
                    len(self._tables.held_by(session)),
                    state.busy,
                    state.draining,
                )
                for session, state in reversed(self._tables.sessions.items())
            ]

    async def ask_drain(self, session: SessionId) -> bool:
        """Ask a worker process to finish and go."""
        with self._lock:
            if self._is_over(session):
                return False
            self._tables.sessions[session].draining = True
            return True

    # -- upkeep --------------------------------------------------------------------------------

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at."""
        with self._lock:
            now = self._clock.now()
            if kind == "sessions":
                lapsed = (
                    session
                    for session, state in self._tables.sessions.items()
                    if state.ended_at is None and self._is_lapsed(state)
                )
                return Due(now, sessions=tuple(lapsed)[:limit])
            entries = self._lost() if kind == "lost" else self._overdue(now)
            jobs = tuple(DueJob(entry.record, entry.seen_at) for entry in entries[:limit])
            return Due(now, jobs=jobs)

    def _lost(self) -> list[Entry]:
        return [
            entry
            for _, entry in sorted(self._tables.entries.items())
            if entry.head.fence is not None
            and not entry.head.blocked
            and self._is_over(entry.head.fence.session)
        ]

    def _is_over(self, session: SessionId) -> bool:
        state = self._tables.sessions.get(session)
        return state is None or state.ended_at is not None

    def _overdue(self, now: Instant) -> list[Entry]:
        moments = ((entry.look_at, row, entry) for row, entry in self._tables.entries.items())
        due = [(moment, row, entry) for moment, row, entry in moments if moment and moment <= now]
        return [entry for _, _, entry in sorted(due, key=lambda each: each[:2])]

    async def promote(self, limit: int) -> int:
        """Make due jobs claimable; end lingering slots and locks."""
        with self._lock:
            now = self._clock.now()
            moved = self._promote_due(self._due(now)[:limit], now)
            moved += self._slots.end_lingering(self._has_lingered)
            return moved + self._end_lingering_locks(self._has_lingered)

    def _has_lingered(self, held: Slot | Lock) -> bool:
        return self._is_past(held.linger_until or 0, held.boot_id)

    def _promote_due(self, due: list[tuple[Instant, int]], now: Instant) -> int:
        for _, row in due:
            self._slots.park(self._tables.entries[row], now)
        return len(due)

    def _due(self, now: Instant) -> list[tuple[Instant, int]]:
        """Return the jobs whose time has come, the longest due first."""
        moments = ((self._tables.entries[row].head.run_at, row) for row in self._tables.later)
        return sorted(moment for moment in moments if moment[0] <= now)

    def _due_of(self, lanes: Container[Lane], now: Instant, each: int) -> list[tuple[Instant, int]]:
        """Return what is due of these lanes, at most so many of each priority."""
        counts: Counter[tuple[Lane, int]] = Counter()
        due = []
        for run_at, row in self._due(now):
            entry = self._tables.entries[row]
            place = (entry.lane, entry.definition.priority)
            if entry.lane in lanes and counts[place] < each:
                counts[place] += 1
                due.append((run_at, row))
        return due

    async def next_due(self) -> Instant | None:
        """Return when the next waiting job becomes due."""
        with self._lock:
            moments = (self._tables.entries[row].head.run_at for row in self._tables.later)
            return min(moments, default=None)

    async def prune(self, limit: int) -> int:
        """Remove jobs that retention no longer keeps, and sessions that are long over."""
        with self._lock:
            now = self._clock.now()
            moments = ((entry.keep_until, row) for row, entry in self._tables.entries.items())
            due = sorted((until, row) for until, row in moments if until and until <= now)[:limit]
            for _, row in due:
                self._tables.drop(self._tables.entries[row])
            return len(due) + self._tables.drop_sessions(now - KEEP_SESSIONS, limit - len(due))

    async def remove(self, ids: Sequence[JobId]) -> list[Removal]:
        """Remove ended jobs at once."""
        with self._lock:
            return [self._remove(job_id) for job_id in ids]

    def _remove(self, job_id: JobId) -> Removal:
        entry = self._tables.by_id(job_id)
        if entry is None:
            return "missing"
        if entry.head.state not in ENDED:
            return "live"
        self._tables.drop(entry)
        return "removed"

    # -- queues --------------------------------------------------------------------------------

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""
        with self._lock:
            return [self._queues[name] for name in sorted(self._queues)]

    async def set_queue(self, settings: QueueSettings) -> None:
        """Pause, drain or reopen a queue."""
        with self._lock:
            self._queues[settings.service, settings.queue] = settings
        self._hints.publish(("ready",))

    def _queue(self, service: str, queue: str) -> QueueSettings:
        return self._queues.get((service, queue)) or QueueSettings(service, queue)


def _decide_claim(entry: Entry, session: SessionId, now: Instant) -> Transition | None:
    """Decide on a job that has been found due.

    It stays due when the wall clock is set back afterwards: else a correction of the clock would
    stop everything that waits.
    """
    head = entry.head
    due = head._replace(run_at=min(head.run_at, now))
    decision = decide(JobRecord(entry.definition, due), Claim(_fence(session)), now)
    if not isinstance(decision, Transition):
        return None
    return decision._replace(before=head, head=decision.head._replace(run_at=head.run_at))


def _fence(session: SessionId) -> Fence:
    return Fence(session, secrets.randbits(62) + 1)
