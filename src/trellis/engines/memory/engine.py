"""The memory engine: every verb of the port, in the simplest correct form.

Every verb runs to its end under one lock, so each is atomic, from any thread. `core` decides; this
class stores. The verbs stand in the order of `trellis.engines.port`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from itertools import takewhile

from trellis.core.admission import (
    Admit,
    CheckKey,
    Facts,
    Replace,
    admit,
    admit_key,
    check_new_job,
    withdraw,
)
from trellis.core.audit import recorded
from trellis.core.batches import KEEP_BATCHES
from trellis.core.commands import Adjust, Claim, Resolve, Skip
from trellis.core.durations import Instant, Micros
from trellis.core.fairness import is_due
from trellis.core.followups import is_end
from trellis.core.job import Fence, JobId, NewJob, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.names import check_lock_name
from trellis.core.slots import may_run_on
from trellis.core.states import ENDED, WAITING, State
from trellis.engines.archive import KEEP_REMOVALS
from trellis.engines.audit import By, creation_of
from trellis.engines.capabilities import Capabilities
from trellis.engines.clock import Clock, SystemClock
from trellis.engines.hints import Hints, is_asked
from trellis.engines.memory.archive import ArchiveVerbs
from trellis.engines.memory.batches import BatchEntry
from trellis.engines.memory.claim import ClaimVerb
from trellis.engines.memory.contracts import ContractVerbs
from trellis.engines.memory.dependencies import DependencyVerbs
from trellis.engines.memory.feed import FeedVerbs
from trellis.engines.memory.followups import Followups
from trellis.engines.memory.key_rates import KeyRates
from trellis.engines.memory.limits import LimitTable, LimitVerbs, Lingering
from trellis.engines.memory.locks import Lock, LockTable
from trellis.engines.memory.operating import OperatorVerbs
from trellis.engines.memory.reads import ReadVerbs
from trellis.engines.memory.schedules import ScheduleVerbs
from trellis.engines.memory.sessions import SessionState
from trellis.engines.memory.slots import Slot, Slots
from trellis.engines.memory.store import Entry, Store
from trellis.engines.memory.tokens import TokenVerbs
from trellis.engines.tokens import KEEP_LOGINS
from trellis.engines.values import (
    KEEP_SESSIONS,
    CommitResult,
    Committed,
    Conflict,
    CreateResult,
    Due,
    DueJob,
    DueKind,
    Health,
    Loaded,
    LockHolder,
    LogLine,
    Migration,
    Note,
    NoteResult,
    Renewed,
    Session,
    SessionLost,
    SessionRecord,
    Topic,
    WorkerInfo,
    answer_to,
)
from trellis.engines.worker_report import NO_REPORT, WorkerReport


class MemoryEngine(
    OperatorVerbs,
    ReadVerbs,
    ScheduleVerbs,
    ContractVerbs,
    TokenVerbs,
    FeedVerbs,
    Followups,
    DependencyVerbs,
    ClaimVerb,
    LimitVerbs,
    ArchiveVerbs,
):
    """Jobs in dictionaries."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._store = Store(self._clock)
        self._locks = LockTable(self._store)
        self._limits = LimitTable(self._store)
        self._slots = Slots(self._store, KeyRates(self._store, self._limits.settings))
        self._batches: dict[str, BatchEntry] = {}
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

    async def create(self, jobs: Sequence[NewJob], by: By | None = None) -> list[CreateResult]:
        """Admit and store new jobs."""
        return self._create_now(jobs, by)

    def create_within(
        self,
        connection: object,  # noqa: ARG002 - as in the port
        jobs: Sequence[NewJob],
    ) -> list[CreateResult] | Awaitable[list[CreateResult]]:
        """Create at once: there is no transaction here that the caller could roll back."""
        return self._create_now(jobs)

    def _create_now(self, jobs: Sequence[NewJob], by: By | None = None) -> list[CreateResult]:
        with self._lock:
            checked = [check_new_job(new) for new in jobs]
            if any(new.together for new in checked):
                withdrawn = withdraw(checked, self._foresee(checked))
                if withdrawn is not None:
                    return list(map(answer_to, checked, withdrawn))
            results = [self._create_one(new, by) for new in checked]
            self._slots.hand_over_new()
            linked = (self._store.by_id(new.id) for new in checked if new.after)
            self._follow(self._judge([entry for entry in linked if entry is not None]))
        self._hints.publish(("ready",))
        return results

    def _create_one(self, new: NewJob, by: By | None) -> CreateResult:
        decision = admit(new, self._facts(new))
        if isinstance(decision, CheckKey):
            decision = admit_key(decision.policy, self._slots.facts(decision.key_hash))
        if isinstance(decision, Replace):
            self._skip(decision.existing, new)
        if isinstance(decision, Admit | Replace):
            now = self._clock.now()
            entry = self._store.insert(new, now)
            if is_due(new, now):
                self._store.ready.give_ranks([entry], now)
            self._slots.enter(entry, now)
            if by is not None:
                self._store.record(creation_of(new), by)
        result = answer_to(new, decision)
        self._join(new, result)
        return result

    def _facts(self, new: NewJob) -> Facts:
        facts, relations = self._store.facts(new), new.relations
        if relations is None:
            return facts
        entry = self._batches.get(relations.batch or "")
        parent = None if relations.parent is None else self._store.by_id(relations.parent)
        return facts._replace(
            batch=None if entry is None else entry.batch.admits,
            spawner_is_current=parent is not None and parent.head.fence == new.spawner,
        )

    def _skip(self, existing: JobId, new: NewJob) -> None:
        entry = self._store.by_id(existing)
        if entry is None:
            return
        decision = decide(entry.record, Skip(new.id), self._clock.now())
        if isinstance(decision, Transition):
            self._write(entry, decision)

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, guarded by version and fence."""
        with self._lock:
            results = [self._commit_one(transition) for transition in transitions]
            pairs = zip(transitions, results, strict=True)
            # All decisions of a call come before what follows from any of them.
            ended = [each for each, got in pairs if got == Committed() and is_end(each)]
            self._follow(sorted(ended, key=lambda each: each.definition.row))
        self._hints.publish(("ready", "settled"))
        if any(map(is_asked, transitions)):
            self._hints.publish(("asked",))
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
        self._put(entry, transition)
        found = recorded(transition)
        if found is not None:
            self._store.record_at(transition.event.at, *found)
        return Committed()

    def _write(self, entry: Entry, transition: Transition) -> None:
        """Write a transition that has passed its guards, and what follows from it."""
        self._put(entry, transition)
        if is_end(transition):
            self._follow([transition])

    def _follow(self, ended: Sequence[Transition]) -> None:
        """Store what follows the end of these jobs, and of those that end because of it."""
        while ended:
            self._after_end(ended)
            ended = self._judge(self._store.dependencies.end(ended))

    def _judge(self, entries: Sequence[Entry]) -> list[Transition]:
        """Resolve or cancel jobs that wait for others where those allow it; return the ends."""
        judged = self._store.dependencies.judge(entries)
        for entry, transition in judged:
            self._put(entry, transition)
        return [transition for _, transition in judged if is_end(transition)]

    def _put(self, entry: Entry, transition: Transition) -> None:
        """Write a transition."""
        store, head = self._store, transition.head
        entry.journal.append(transition.event)
        store.feed.update(entry)
        entry.head = head
        entry.postponed_until = None
        if isinstance(transition.command, Resolve):
            entry.definition = transition.definition
        entry.is_unresolved &= head.state in WAITING and type(transition.command) is not Resolve
        if head.run_at != transition.before.run_at or head.state in ENDED:
            entry.rank = None
        if isinstance(transition.command, Adjust):
            entry.redefine(transition.definition)
            store.lane_names.add(entry.lane)
        linger_until = store.linger_until(transition.before.fence)
        self._slots.update(entry, transition, linger_until)
        if linger_until is not None and may_run_on(transition):
            self._locks.linger(transition, linger_until)
            self._limits.linger(transition, entry.lane, linger_until)
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
        elif entry.definition.key_hash is not None and type(transition.command) is not Claim:
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
        result = entry.note(note, self._clock.now(), self._store.last_log)
        self._store.feed.update(entry)  # a late result is journalled
        return result

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
        report: WorkerReport = NO_REPORT,
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
            state.report = report
            reported = {fence for fence in stopped if fence.session == session}
            self._locks.drop_stopped(session, reported)
            self._slots.end_lingering(lambda slot: slot.fence in reported)
            if self._limits.end_lingering(lambda each: each.fence in reported):
                self._hints.publish(("ready",))
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
            self._limits.end_lingering(lambda each: each.fence.session == session)
            return True

    def _end_session(self, session: SessionId) -> None:
        state = self._store.sessions.get(session)
        if state is not None and state.ended_at is None:
            state.ended_at = self._clock.now()
            self._locks.drop_of(session)

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
            if kind == "batches":
                entries = self._to_cancel()
            else:
                entries = self._store.lost() if kind == "lost" else self._store.overdue(now)
            jobs = tuple(DueJob(entry.record, entry.seen_at) for entry in entries[:limit])
            return Due(now, jobs=jobs)

    async def promote(self, limit: int) -> int:
        """Make due jobs claimable; end the lingering of slots and locks that is over."""
        with self._lock:
            now = self._clock.now()
            moved = self._start(self._store.startable(now)[:limit], now)
            moved += self._slots.wake(now, limit)
            moved += self._slots.end_lingering(self._has_lingered)
            if self._limits.end_lingering(self._has_lingered):
                self._hints.publish(("ready",))
            return moved + self._locks.end_lingering(self._has_lingered)

    def _start(self, entries: Sequence[Entry], now: Instant) -> int:
        self._store.ready.give_ranks(entries, now)
        for entry in entries:
            self._slots.set_availability(entry, now)
        # Only now, so that jobs of a key that become due together get slots in their order.
        for key_hash in {entry.definition.key_hash for entry in entries} - {None}:
            self._slots.hand_over(str(key_hash))
        return len(entries)

    def _has_lingered(self, held: Slot | Lock | Lingering) -> bool:
        return self._store.is_past(held.linger_until or 0, held.boot_id)

    async def next_due(self) -> Instant | None:
        """Return the earliest run time among the jobs that wait for theirs."""
        with self._lock:
            store = self._store
            moments = [store.entries[row].head.run_at for row in store.scheduled]
            of_keys = self._slots.rates.next_moment()
            return min([*moments, *([] if of_keys is None else [of_keys])], default=None)

    async def prune(self, limit: int) -> int:
        """Remove jobs that retention no longer keeps, and sessions that ended long ago."""
        with self._lock:
            now = self._clock.now()
            self._slots.rates.drop_full(now)
            self._drop_batches(now - KEEP_BATCHES, limit)
            moved = self._expire(now, limit)
            self._store.ready.prune(now, limit)
            removed = self._store.removed
            old = takewhile(lambda each: each[1] <= now - KEEP_REMOVALS, removed.items())
            for _, job_id in sorted((moment, job_id) for job_id, moment in old)[:limit]:
                del removed[job_id]
            self._drop_logins(now - KEEP_LOGINS, limit)
            return moved + self._store.drop_sessions(now - KEEP_SESSIONS, limit - moved)

    async def migrate(self, *, dry_run: bool = False, by: By | None = None) -> Migration:  # noqa: ARG002
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
            records = tuple(
                None if entry is None or entry.is_held else entry.record for entry in entries
            )
            removed = self._store.removed.keys() & set(ids) - self._store.rows.keys()
            return Loaded(self._clock.now(), records, frozenset(removed))

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints."""
        return self._hints.watch(topics)
