"""The memory engine: every verb of the port, in the simplest correct form.

Every verb runs to its end under one lock, so each is atomic, from any thread. `core` decides; this
class stores. The verbs stand in the order of `trellis.engines.port`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncIterator, Sequence

from trellis.core.admission import (
    Admit,
    CheckKey,
    Replace,
    admit,
    admit_key,
    check_new_job,
)
from trellis.core.commands import Claim, Skip
from trellis.core.durations import Instant, Micros
from trellis.core.events import Event
from trellis.core.job import Fence, JobId, JobRecord, NewJob, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.slots import may_run_on
from trellis.core.states import ENDED, WAITING, State
from trellis.engines.clock import Clock, SystemClock
from trellis.engines.hints import Hints
from trellis.engines.memory import reads
from trellis.engines.memory.locks import Lock, LockTable
from trellis.engines.memory.slots import Slot, Slots
from trellis.engines.memory.store import Entry, Lane, SessionState, Store
from trellis.engines.values import (
    KEEP_SESSIONS,
    Activity,
    Capabilities,
    Claimed,
    CommitResult,
    Committed,
    Conflict,
    Counts,
    CreateResult,
    Demand,
    Due,
    DueJob,
    DueKind,
    GroupBy,
    Health,
    JobFilter,
    KeyStatus,
    Loaded,
    LockHolder,
    LogEntry,
    LogLine,
    Migration,
    Note,
    NoteResult,
    Outcome,
    Page,
    QueueSettings,
    Removal,
    Renewed,
    Session,
    SessionLost,
    SessionRecord,
    Topic,
    WorkerInfo,
    answer_to,
    check_lock_name,
)


class MemoryEngine:
    """Jobs in dictionaries."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._store = Store(self._clock)
        self._slots = Slots(self._store)
        self._locks = LockTable(self._store)
        self._hints = Hints()

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        return Capabilities(durable=False, processes=False)

    async def open(self) -> None:
        """Allow watching again."""
        self._hints.reopen()

    async def close(self) -> None:
        """End every watch; the jobs stay as long as the engine object does."""
        self._hints.close()

    # -- jobs ----------------------------------------------------------------------------------

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

    def _create_one(self, new: NewJob) -> CreateResult:
        decision = admit(new, self._store.facts(new))
        if isinstance(decision, CheckKey):
            decision = admit_key(decision.policy, self._slots.facts(decision.key_hash))
        if isinstance(decision, Replace):
            self._skip(decision.existing, new)
        if isinstance(decision, Admit | Replace):
            now = self._clock.now()
            self._slots.admit(self._store.insert(new, now), now)
        return answer_to(new, decision)

    def _skip(self, existing: JobId, new: NewJob) -> None:
        entry = self._store.by_id(existing)
        if entry is None:
            return
        decision = decide(entry.record, Skip(new.id), self._clock.now())
        if isinstance(decision, Transition):
            self._write(entry, decision)

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim due jobs."""
        with self._lock:
            now = self._clock.now()
            if self._store.is_over(session):
                return Claimed(now, ())
            wanted = self._store.open_lanes(demands)
            self._start(self._store.startable_of(wanted, now, limit), now)
            return Claimed(now, tuple(self._take(session, demands, wanted, limit)))

    def _take(
        self, session: SessionId, demands: Sequence[Demand], wanted: dict[Lane, int], limit: int
    ) -> list[JobRecord]:
        now = self._clock.now()
        left = [demand.limit for demand in demands]
        lanes = list(wanted)
        passed_over: list[Entry] = []
        taken: list[JobRecord] = []
        for lane, row in self._store.lanes.in_order(lanes):
            entry = self._store.entries.get(row)
            if entry is None or entry.availability != "ready":
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
            self._write(entry, decision)
            taken.append(entry.record)
        for entry in passed_over:
            self._store.lanes.add(entry)
        return taken

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, guarded by version and fence."""
        with self._lock:
            results = [self._commit_one(transition) for transition in transitions]
        self._hints.publish(("ready", "settled"))
        return results

    def _commit_one(self, transition: Transition) -> CommitResult:
        entry = self._store.entries.get(transition.definition.row)
        if entry is None:
            return Conflict(None)
        before = transition.before
        if entry.head.version != before.version or entry.head.fence != before.fence:
            return Conflict(entry.record)
        if before.state in ENDED and transition.head.state in WAITING:
            refused = self._slots.refuse_revival(entry)
            if refused is not None:
                return refused
        self._write(entry, transition)
        return Committed()

    def _write(self, entry: Entry, transition: Transition) -> None:
        """Write a transition that has passed its guards."""
        store, head = self._store, transition.head
        entry.journal.append(transition.event)
        entry.head = head
        if entry.dedupe is not None:
            store.dedupe.pop(entry.dedupe, None)
            entry.dedupe = None
        linger_until = store.linger_until(transition.before.fence)
        self._slots.update(entry, transition, linger_until)
        if linger_until is not None and may_run_on(transition):
            self._locks.linger(transition, linger_until)
        if head.state is State.ACTIVE:
            entry.availability = "claimed"
            if transition.event.fence != transition.before.fence:
                entry.seen_at = None
                self._slots.give_to_attempt(entry)
        elif head.state in ENDED:
            entry.availability = None
            store.scheduled.discard(entry.definition.row)
            entry.record_outcome(transition)
        if head.state in WAITING:
            self._slots.admit(entry, max(transition.event.at, self._clock.now()))
        elif entry.definition.key_hash is not None:
            self._slots.hand_over(entry.definition.key_hash)

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Store notes whose fence holds."""
        with self._lock:
            return [self._note_one(note) for note in notes]

    def _note_one(self, note: Note) -> NoteResult:
        entry = self._store.entries.get(note.row)
        if entry is None:
            return NoteResult.STALE
        if isinstance(note.body, LogLine):
            self._store.last_log += 1
        return entry.note(note, self._clock.now(), self._store.last_log)

    async def remove(self, ids: Sequence[JobId]) -> list[Removal]:
        """Remove ended jobs at once."""
        with self._lock:
            return [self._remove(job_id) for job_id in ids]

    def _remove(self, job_id: JobId) -> Removal:
        entry = self._store.by_id(job_id)
        if entry is None:
            return "missing"
        if entry.head.state not in ENDED:
            return "live"
        self._store.drop(entry)
        return "removed"

    async def set_queue(self, settings: QueueSettings) -> None:
        """Pause, drain or reopen a queue."""
        with self._lock:
            self._store.queues[settings.service, settings.queue] = settings
        self._hints.publish(("ready",))

    # -- sessions ------------------------------------------------------------------------------

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session."""
        with self._lock:
            session = SessionId(secrets.randbits(62) + 1)
            now = self._clock.now()
            until = self._clock.lease_now() + lease
            self._store.sessions[session] = SessionState(
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
            state = self._store.sessions.get(session)
            if state is None or state.ended_at is not None:
                return SessionLost(now)
            state.renewed_at = now
            state.lease_until = self._clock.lease_now() + state.lease
            state.boot_id = self._clock.boot_id()
            state.busy = busy
            reported = {fence for fence in stopped if fence.session == session}
            self._locks.drop_stopped(session, reported)
            self._slots.end_lingering(lambda slot: slot.fence in reported)
            stored = {entry.head.fence: entry for entry in self._store.held_by(session)}
            asked = (
                fence
                for fence in held
                if fence in stored and stored[fence].head.asked_at is not None
            )
            lost = (fence for fence in held if fence not in stored)
            unknown = (entry.record for fence, entry in stored.items() if fence not in held)
            return Renewed(now, tuple(asked), tuple(lost), tuple(unknown), state.draining)

    async def close_session(self, session: SessionId) -> None:
        """End a session gracefully."""
        with self._lock:
            self._end_session(session)

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease has lapsed."""
        with self._lock:
            state = self._store.sessions.get(session)
            if state is not None and state.ended_at is None and not self._store.is_lapsed(state):
                return False
            self._end_session(session)
            self._slots.end_lingering(
                lambda slot: slot.fence is not None and slot.fence.session == session
            )
            self._locks.end_lingering(lambda lock: lock.session == session)
            return True

    def _end_session(self, session: SessionId) -> None:
        state = self._store.sessions.get(session)
        if state is not None and state.ended_at is None:
            state.ended_at = self._clock.now()
            self._locks.drop_of(session)

    async def ask_drain(self, session: SessionId) -> bool:
        """Ask a worker process to finish its jobs and exit."""
        with self._lock:
            if self._store.is_over(session):
                return False
            self._store.sessions[session].draining = True
            return True

    async def sessions(self) -> list[SessionRecord]:
        """List sessions, the newest first."""
        with self._lock:
            sessions = reversed(self._store.sessions.items())
            return [self._store.session_record(session, state) for session, state in sessions]

    # -- locks ---------------------------------------------------------------------------------

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        """Take a lock that is free or already the caller's; otherwise return its holder."""
        check_lock_name(name)
        with self._lock:
            return self._locks.take(name, session, token)

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Release a lock."""
        with self._lock:
            return self._locks.free(name, session, token)

    async def locks(self) -> list[LockHolder]:
        """List the holders of all valid locks."""
        with self._lock:
            return self._locks.holders()

    # -- maintenance ---------------------------------------------------------------------------

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at."""
        with self._lock:
            now = self._clock.now()
            if kind == "sessions":
                return Due(now, sessions=tuple(self._store.lapsed_sessions()[:limit]))
            entries = self._store.lost() if kind == "lost" else self._store.overdue(now)
            jobs = tuple(DueJob(entry.record, entry.seen_at) for entry in entries[:limit])
            return Due(now, jobs=jobs)

    async def promote(self, limit: int) -> int:
        """Make due jobs claimable; end the lingering of slots and locks that is over."""
        with self._lock:
            now = self._clock.now()
            moved = self._start(self._store.startable(now)[:limit], now)
            moved += self._slots.end_lingering(self._has_lingered)
            return moved + self._locks.end_lingering(self._has_lingered)

    def _start(self, entries: Sequence[Entry], now: Instant) -> int:
        for entry in entries:
            self._slots.set_availability(entry, now)
        # Only now, so that jobs of a key that become due together get slots in creation order.
        for key_hash in {entry.definition.key_hash for entry in entries} - {None}:
            self._slots.hand_over(str(key_hash))
        return len(entries)

    def _has_lingered(self, held: Slot | Lock) -> bool:
        return self._store.is_past(held.linger_until or 0, held.boot_id)

    async def next_due(self) -> Instant | None:
        """Return the earliest run time among the jobs that wait for theirs."""
        with self._lock:
            store = self._store
            return min((store.entries[row].head.run_at for row in store.scheduled), default=None)

    async def prune(self, limit: int) -> int:
        """Remove jobs that retention no longer keeps, and sessions that ended long ago."""
        with self._lock:
            now = self._clock.now()
            old = self._store.past_retention(now)[:limit]
            for entry in old:
                self._store.drop(entry)
            return len(old) + self._store.drop_sessions(now - KEEP_SESSIONS, limit - len(old))

    async def migrate(self, *, dry_run: bool = False) -> Migration:  # noqa: ARG002
        """Return that there is no schema."""
        return Migration(0, 0)

    async def health(self) -> Health:
        """Report what this engine is."""
        return Health("memory", "nothing survives this process", {"jobs": len(self._store.rows)})

    # -- reads ---------------------------------------------------------------------------------

    async def now(self) -> Instant:
        """Return the engine's time."""
        return self._clock.now()

    async def catch_up(self) -> None:
        """Return at once: reads always see everything."""

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs."""
        with self._lock:
            entries = [self._store.by_id(job_id) for job_id in ids]
            records = tuple(None if entry is None else entry.record for entry in entries)
            removed = self._store.removed.keys() & set(ids) - self._store.rows.keys()
            return Loaded(self._clock.now(), records, frozenset(removed))

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""
        with self._lock:
            return reads.find(self._store, where, after, limit)

    async def count(self, where: JobFilter, *group_by: GroupBy) -> Counts:
        """Count matching jobs per combination of groups."""
        with self._lock:
            return reads.count(self._store, where, group_by)

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job."""
        with self._lock:
            entry = self._store.by_id(job_id)
            return [] if entry is None else list(entry.journal)

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation ended."""
        with self._lock:
            entry = self._store.by_id(job_id)
            return [] if entry is None else list(entry.outcomes)

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt reported."""
        with self._lock:
            entry = self._store.by_id(job_id)
            if entry is None or entry.activity is None:
                return None
            return entry.activity if entry.activity.claim == entry.head.claims else None

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines."""
        with self._lock:
            entry = self._store.by_id(job_id)
            lines = [] if entry is None else [line for line in entry.logs if line.number > after]
            return lines[:limit]

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that is in use."""
        with self._lock:
            return reads.keys(self._store, self._slots, service, job_type)

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""
        with self._lock:
            return [self._store.queues[name] for name in sorted(self._store.queues)]

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints."""
        return self._hints.watch(topics)


def _decide_claim(entry: Entry, session: SessionId, now: Instant) -> Transition | None:
    """Decide on a job that has been found due.

    It stays due when the wall clock is set back afterwards: otherwise a correction of the clock
    would stop every waiting job.
    """
    head = entry.head
    due = head._replace(run_at=min(head.run_at, now))
    fence = Fence(session, secrets.randbits(62) + 1)
    decision = decide(JobRecord(entry.definition, due), Claim(fence), now)
    if not isinstance(decision, Transition):
        return None
    return decision._replace(before=head, head=decision.head._replace(run_at=head.run_at))
