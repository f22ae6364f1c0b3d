"""One of the two engines in the model: driven through the port, with comparable answers.

Session ids and tokens are random on every engine, and row numbers differ; comparable answers number
fences by the order in which they first appeared, and leave rows out.
"""
# ruff: noqa: S101 - a step that cannot be taken at all is a failure of the model

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from trellis.control import apply_all, cancel_stopped_members
from trellis.core.batches import Batch, NewBatch
from trellis.core.commands import Command, LoseLease
from trellis.core.durations import SECOND, Micros
from trellis.core.events import Event
from trellis.core.fold import fold
from trellis.core.job import Fence, Head, JobId, JobRecord, NewJob, Relations, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.schedules import Schedule
from trellis.core.timers import overdue
from trellis.engines.audit import AuditFilter
from trellis.engines.batches import BatchFilter, BatchStatus
from trellis.engines.capabilities import Capabilities
from trellis.engines.demand import Demand
from trellis.engines.feed import Changes
from trellis.engines.port import Engine
from trellis.engines.values import DueJob, JobFilter, LockHolder, Note, NoteBody
from trellis.engines.worker_report import WorkerReport
from trellis.testing.builders import a_worker, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.model.menu import KEYED, RATED, SERVICE, TYPES, JobRequest

#: Something that can be compared between two engines.
Plain = Any
Settlement = Callable[[Fence], Command]
_ALL: Final = 10_000
#: Events in a page of the feed.
_PAGE: Final = 7
_LOOKS: Final = 1000
_LEASE: Final = 60 * SECOND


class Side:
    """An engine, its clock, and what the model has sent to it and received from it."""

    def __init__(self, engine: Engine, clock: ManualClock, can: Capabilities) -> None:
        self.engine = engine
        self.clock = clock
        #: What the engine under test can do: both sides leave out what it cannot.
        self.can = can
        self.sessions: list[SessionId] = []
        #: Every request ever sent, and every claim ever made, as it was returned.
        self.sent: list[NewJob] = []
        self.claims: list[JobRecord] = []
        self.batches: list[NewBatch] = []
        self._looks = 0
        self._names: dict[int, int] = {}
        self._versions: dict[JobId, int] = {}
        self._statuses: dict[str, BatchStatus] = {}
        self._changes: dict[str, list[int]] = {}

    # -- comparable answers --------------------------------------------------------------------

    def _name(self, number: int) -> int:
        return self._names.setdefault(number, len(self._names))

    def plain(self, value: Any) -> Plain:  # noqa: ANN401 - any value of the port
        """Return the value without what engines choose at random."""
        match value:
            case JobRecord(definition, head):
                return definition._replace(row=0), self.plain(head)
            case Head():
                return value._replace(fence=None), self.plain(value.fence)
            case Fence(session, token):
                return "fence", self._name(session), self._name(token)
            case Batch():
                return value._replace(row=0)
            case DueJob(record, seen_at):
                watched = record.definition.policy.activity_timeout is not None
                return self.plain(record), seen_at if watched else None
            case LockHolder():
                return value.name, self._name(value.session), self._name(value.token), value[3:]
            case tuple() | list():
                return type(value).__name__, [self.plain(each) for each in value]
            case _:
                return value

    def numbered(self, schedule: Schedule) -> Schedule:
        """Return a schedule with the number of changes seen: a step may be stored in parts."""
        seen = self._changes.setdefault(schedule.name, [])
        if seen[-1:] != [schedule.version]:
            seen.append(schedule.version)
        return schedule._replace(version=len(seen))

    # -- choices, counted from the newest ------------------------------------------------------

    def _claim(self, recent: int) -> JobRecord:
        return self.claims[-1 - recent % len(self.claims)]

    def _job_ids(self) -> list[JobId]:
        return [new.id for new in self.sent]

    def _session(self, recent: int) -> SessionId:
        return self.sessions[-1 - recent % len(self.sessions)]

    def batch_id(self, recent: int) -> str | None:
        """Return the id of a batch; None if none was opened."""
        return self.batches[-1 - recent % len(self.batches)].id if self.batches else None

    # -- the steps -----------------------------------------------------------------------------

    async def create(self, requests: Sequence[JobRequest]) -> Plain:
        """Create jobs."""
        return await self._send(self._made(requests))

    async def create_in(self, batch: str | None, requests: Sequence[JobRequest]) -> Plain:
        """Create jobs in a batch."""
        jobs = self._made(requests)
        return await self._send([_related(new, batch=batch) for new in jobs])

    async def spawn(self, claim: int, requests: Sequence[JobRequest]) -> Plain:
        """Create jobs from an attempt, in the batch of its job."""
        if not self.claims:
            return None
        taken = self._claim(claim)
        own = taken.definition.relations
        batch = None if own is None else own.batch
        fence = fence_of(taken)
        jobs = [
            _related(new, batch=batch, parent=taken.definition.id)._replace(spawner=fence)
            for new in self._made(requests)
        ]
        return await self._send(jobs)

    def _made(self, requests: Sequence[JobRequest]) -> list[NewJob]:
        first = len(self.sent)
        return [self.make(request, first + place) for place, request in enumerate(requests)]

    def make(self, request: JobRequest, number: int) -> NewJob:
        """Return a request with an id, without what the engine under test cannot do."""
        if request.type == RATED and not self.can.key_rates:
            request = request._replace(type="pair")
        if not self.can.ordered:
            request = request._replace(tenant=None)  # no fair share
        return request.make(number)

    async def _send(self, jobs: Sequence[NewJob]) -> Plain:
        self.sent += jobs
        return self.plain(await self.engine.create(jobs))

    async def create_again(self, recent: int, payload: str | None) -> Plain:
        """Send a job once more, as it was or with another payload."""
        if not self.sent:
            return None
        new = self.sent[-1 - recent % len(self.sent)]
        again = new if payload is None else new._replace(payload=payload)
        return self.plain(await self.engine.create([again]))

    async def advance(self, seconds: int) -> None:
        """Advance the clock; promote what is due where the engine starts it without that."""
        self.clock.advance(seconds)
        if not self.can.ordered:
            await self.promote(_ALL)

    async def promote(self, limit: int) -> Plain:
        """Promote what is due; how much that is, is told by an engine that needs it."""
        if self.can.ordered:
            return await self.engine.promote(limit)
        await self.engine.catch_up()
        await self.engine.promote(_ALL)
        return None

    async def open_session(self, lease: Micros) -> Plain:
        """Open one more session."""
        session = await self.engine.open_session(a_worker(), lease)
        self.sessions.append(session.id)
        return self._name(session.id), session.lease, session.now

    async def claim(self, session: int, demands: Sequence[Demand], limit: int) -> Plain:
        """Claim for one of the sessions; everything, where the engine chooses in which order."""
        await self.engine.catch_up()
        if not self.can.ordered:
            demands, limit = [each._replace(limit=_ALL) for each in demands], _ALL
        claimed = await self.engine.claim(self._session(session), demands, limit)
        if not self.can.ordered:
            by_id = sorted(claimed.jobs, key=lambda each: each.definition.id)
            claimed = claimed._replace(jobs=tuple(by_id))
        self.claims += claimed.jobs
        return self.plain(claimed)

    async def settle(self, claim: int, settlement: Settlement, *, fresh: bool) -> Plain:
        """Decide a settlement against the claim, or the job as it is now, and commit it."""
        if not self.claims:
            return None
        taken = self._claim(claim)
        loaded = await self.engine.load([taken.definition.id])
        seen = loaded.records[0] if fresh else taken
        if seen is None:
            return "gone"
        decision = decide(seen, settlement(fence_of(taken)), loaded.now)
        if not isinstance(decision, Transition):
            return self.plain(decision)
        return self.plain(await self.engine.commit([decision]))

    async def settle_together(self, claims: Sequence[int], settlement: Settlement) -> Plain:
        """Commit one settlement of several attempts in one batch, decided against their claims."""
        if not self.claims:
            return None
        now = await self.engine.now()
        taken = [self._claim(claim) for claim in claims]
        decisions = [decide(each, settlement(fence_of(each)), now) for each in taken]
        batch = [each for each in decisions if isinstance(each, Transition)]
        return self.plain(await self.engine.commit(batch))

    async def apply_late(self, claim: int, settlement: Settlement) -> Plain:
        """Apply a settlement of an attempt as a worker does, even if it has ended."""
        if not self.claims:
            return None
        taken = self._claim(claim)
        now = await self.engine.now()
        self._versions.pop(taken.definition.id, None)
        return self.plain(await apply_all(self.engine, [(taken, settlement(fence_of(taken)))], now))

    async def operate(self, recent: int, operation: Command, *, claimed: bool) -> Plain:
        """Apply a command of an operator to a job that was claimed once, or to any."""
        job_ids = [each.definition.id for each in self.claims] if claimed else self._job_ids()
        if not job_ids:
            return None
        job_id = job_ids[-1 - recent % len(job_ids)]
        loaded = await self.engine.load([job_id])
        record = loaded.records[0]
        if record is None:
            return "gone", loaded.removed
        return self.plain(await apply_all(self.engine, [(record, operation)], loaded.now))

    async def note(self, claim: int, bodies: Sequence[NoteBody]) -> Plain:
        """Store notes of an attempt."""
        if not self.claims:
            return None
        taken = self._claim(claim)
        row, claims, fence = taken.definition.row, taken.head.claims, fence_of(taken)
        results = await self.engine.note([Note(row, claims, fence, body) for body in bodies])
        self._versions.pop(taken.definition.id, None)
        return results, self.plain(await self.engine.activity(taken.definition.id))

    async def renew(self, session: int, *, held: bool, stopped: bool) -> Plain:
        """Renew a session, naming all or none of its claims as held and as stopped."""
        ours = self._session(session)
        fences = [fence_of(each) for each in self.claims if fence_of(each).session == ours]
        answer = await self.engine.renew(
            ours, fences * held, fences * stopped, WorkerReport(len(fences))
        )
        return self.plain(answer)

    async def lock(self, name: str, session: int, claim: int | None, *, free: bool) -> Plain:
        """Take or free a lock: for a session, or for an attempt, however old."""
        holder = Fence(self._session(session), 0)
        if claim is not None and self.claims:
            holder = fence_of(self._claim(claim))
        if free:
            return await self.engine.free_lock(name, *holder)
        return self.plain(await self.engine.take_lock(name, *holder))

    async def end_lock_holder(self, name: str, operation: Command) -> Plain:
        """Apply a command of an operator to the job whose attempt has, or had, this lock."""
        holders = [lock.job_id for lock in await self.engine.locks() if lock.name == name]
        loaded = await self.engine.load([job_id for job_id in holders if job_id is not None])
        asked = [(record, operation) for record in loaded.records if record is not None]
        return self.plain(await apply_all(self.engine, asked, loaded.now))

    async def remove(self, recent: Sequence[int]) -> Plain:
        """Remove some of the jobs ever sent."""
        job_ids = self._job_ids()
        wanted = [job_ids[-1 - each % len(job_ids)] for each in recent] if job_ids else []
        return await self.engine.remove(wanted)

    async def end_session(self, session: int, *, reap: bool) -> Plain:
        """Close a session, or try to reap it."""
        if reap:
            return await self.engine.reap(self._session(session))
        return await self.engine.close_session(self._session(session))

    async def maintain(self) -> Plain:
        """Do a round of maintenance: reap, give up, settle what is overdue, promote.

        A worker whose session was reaped comes back with a new one.
        """
        lapsed = (await self.engine.due("sessions", _ALL)).sessions
        reaped = [await self.engine.reap(session) for session in lapsed]
        if lapsed:
            reaped.append(await self.open_session(_LEASE))
        lost = await self.engine.due("lost", _ALL)
        given_up = await apply_all(
            self.engine,
            [(job.record, LoseLease(fence_of(job.record), roll=0.5)) for job in lost.jobs],
            lost.now,
        )
        due = await self.engine.due("jobs", _ALL)
        asked = []
        for record, seen_at in due.jobs:
            command = overdue(record.definition, record.head, seen_at, due.now, 0.5)
            assert command is not None, "The engine returned a job as due that is not."
            asked.append((record, command))
        settled = await apply_all(self.engine, asked, due.now)
        cancelled = await cancel_stopped_members(self.engine)
        assert not await self.engine.finish_batches(_ALL), "A complete batch was left behind."
        promoted = await self.promote(_ALL)
        return reaped, self.plain(given_up), self.plain(settled), cancelled, promoted

    # -- reads ---------------------------------------------------------------------------------

    async def look(self) -> Seen:
        """Return the state that must be equal after a step; jobs in full if they changed."""
        engine = self.engine
        await engine.catch_up()
        page, sessions, lapsed, lost, overdue_jobs, stopped = await asyncio.gather(
            engine.find(JobFilter(), limit=_ALL),
            engine.sessions(),
            engine.due("sessions", _ALL),
            engine.due("lost", _ALL),
            engine.due("jobs", _ALL),
            engine.due("batches", _ALL),
        )
        locks, upcoming = await asyncio.gather(engine.locks(), engine.next_due())
        statuses = await self._batches()
        changed = [each for each in page.jobs if self._is_changed(each)]
        types = self._types_to_look_at(changed)
        links = await engine.links([each.definition.id for each in changed], _ALL)
        journals = await asyncio.gather(*(self._journal(each) for each in changed))
        return Seen(
            jobs=[(each.definition.id, each.head.version, each.head.state) for each in page.jobs],
            changed=[self.plain(record) for record in changed],
            journals=[self.plain(each) for each in journals],
            keys=await asyncio.gather(*(self._keys(name) for name in types)),
            sessions=[(self._name(each.id), each.renewed_at, *each[5:]) for each in sessions],
            due_sessions=[self._name(each) for each in lapsed.sessions],
            due_lost=self.plain(lost),
            due_jobs=self.plain(overdue_jobs),
            locks=self.plain(locks),
            upcoming=upcoming,
            links=links,
            due_batches=self.plain(stopped),
            batches=self.plain(statuses),
            members=[await self._members(each) for each in statuses if self._is_other(each)],
        )

    async def _batches(self) -> list[BatchStatus]:
        """Return all batches with the numbers of their members."""
        listed = await self.engine.batches(BatchFilter(), limit=_ALL)
        statuses = await self.engine.batch_statuses([each.new.id for each in listed])
        return [each for each in statuses if each is not None]

    def _is_other(self, status: BatchStatus) -> bool:
        """Return whether a batch, or the number of members in a state, has changed."""
        batch_id = status.batch.new.id
        known = self._statuses.get(batch_id)
        self._statuses[batch_id] = status
        return known != status

    async def _members(self, status: BatchStatus) -> Plain:
        found = await self.engine.members(status.batch.new.id, 0, _ALL)
        return [(each.record.definition.id, each.result) for each in found]

    def _types_to_look_at(self, changed: Sequence[JobRecord]) -> list[str]:
        """Return the keyed types that changed, and one more in turn: all of them is slow."""
        self._looks += 1
        touched = {record.definition.type for record in changed}
        return [
            name
            for place, name in enumerate(KEYED)
            if name in touched or place == self._looks % len(KEYED)
        ]

    def _is_changed(self, record: JobRecord) -> bool:
        job_id, version = record.definition.id, record.head.version
        known = self._versions.get(job_id)
        self._versions[job_id] = version
        return known != version

    async def _journal(self, record: JobRecord) -> list[Event]:
        events = await self.engine.journal(record.definition.id)
        assert fold(events) == record.head, "The journal does not fold to the head."
        return events

    async def _keys(self, name: str) -> Plain:
        statuses = await self.engine.keys(SERVICE, name)
        policy = TYPES[name].key
        assert policy is not None
        for status in statuses:
            assert status.taken <= policy.active, "A key has one holder too many."
        return self.plain(statuses)

    async def look_closely(self) -> Plain:
        """Return everything else that is stored, of all jobs, keys and batches."""
        engine = self.engine
        keys = [await self._keys(name) for name in KEYED]
        found = (await engine.find(JobFilter(), limit=_ALL)).jobs
        stored = [each.definition.id for each in found]
        jobs = await asyncio.gather(*(self._look_at_job(job_id) for job_id in stored))
        removed = (await engine.load(self._job_ids())).removed
        members = [await self._members(each) for each in await self._batches()]
        settings, audit, feed = (
            await engine.queue_settings(),
            await self._audit(),
            await self._feed(),
        )
        return self.plain(found), keys, jobs, removed, members, settings, audit, feed

    async def _audit(self) -> Plain:
        """Return what operators changed; the target of a worker's drain is its random number."""
        found = []
        for entry in await self.engine.audit(AuditFilter(), limit=_ALL):
            change = entry.change
            target: Plain = change.target
            if change.action == "worker.drain":
                target = self._name(int(target, 16))
            found.append((entry.at, change.action, target, change.before, change.after, entry.by))
        return found

    async def _feed(self) -> Plain:
        """Return the feed by job; each job's events must be its journal.

        On PostgreSQL a short transaction of the engine itself may hold the last events back.
        """
        page = await self.engine.find(JobFilter(), limit=_ALL)
        ids = sorted(record.definition.id for record in page.jobs)
        journals = {job_id: await self.engine.journal(job_id) for job_id in ids}
        for _ in range(_LOOKS):
            found = await self._read_feed()
            if found == journals:
                return self.plain(list(found.items()))
        raise AssertionError("The feed does not consist of the journals.")

    async def _read_feed(self) -> dict[JobId, list[Event]]:
        """Read the feed to its end in small pages."""
        found: dict[JobId, list[Event]] = {}
        cursor, is_last = None, False
        while not is_last:
            page = await self.engine.changes(cursor, _PAGE)
            assert isinstance(page, Changes), "The feed lost events although nothing was removed."
            for entry in page.entries:
                found.setdefault(entry.job_id, []).append(entry.event)
            cursor, is_last = page.cursor, page.is_last
        return dict(sorted(found.items()))

    async def _look_at_job(self, job_id: JobId) -> Plain:
        engine = self.engine
        lines, items, activity, outcomes = await asyncio.gather(
            engine.logs(job_id),
            engine.items(job_id),
            engine.activity(job_id),
            engine.outcomes(job_id),
        )
        return [line[1:] for line in lines], items, self.plain(activity), self.plain(outcomes)


def _related(new: NewJob, *, batch: str | None, parent: JobId | None = None) -> NewJob:
    """Return a request for a member of a batch, or from an attempt."""
    own = (new.relations or Relations())._replace(batch=batch, parent=parent)
    return new._replace(relations=None if own == Relations() else own)


class Seen(NamedTuple):
    """The state of an engine after a step."""

    jobs: Plain
    changed: Plain
    journals: Plain
    keys: Plain
    sessions: Plain
    due_sessions: Plain
    due_lost: Plain
    due_jobs: Plain
    locks: Plain
    upcoming: Plain
    links: Plain
    due_batches: Plain
    batches: Plain
    members: Plain
