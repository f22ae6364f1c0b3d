"""`claim`: work messages say which jobs to look at; a job starts by its fenced `started` alone.

Each type has a consumer of the work queue, made by the first worker that claims it. A message stays
unacknowledged until the attempt is settled: its delivery is repeated if no worker renews it. What
cannot start now is scheduled, or its message is acknowledged because another hint will come.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from trellis.core.commands import Claim, LoseLease
from trellis.core.durations import SECOND, Instant
from trellis.core.job import Fence, JobRecord, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import in_force
from trellis.core.states import WAITING, State
from trellis.engines.demand import Demand
from trellis.engines.jetstream import keys
from trellis.engines.jetstream.claim_limits import ClaimLimits
from trellis.engines.jetstream.commit import CommitVerb
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.hints import Work, hint_later, message_of
from trellis.engines.jetstream.lanes import Lanes
from trellis.engines.jetstream.line import Line
from trellis.engines.jetstream.link import Message, Written
from trellis.engines.jetstream.sessions import Held
from trellis.engines.jetstream.settings import CachedSettings, Openness
from trellis.engines.jetstream.store import Current
from trellis.engines.values import Claimed, Committed
from trellis.errors import AccessDenied, EngineClosed, EngineError, OutcomeUnknown

#: When a job is looked at again that waits in a queue which no worker here demands, or which is
#: paused: when that is opened, the job is looked at in any case.
_PARKED: Final = 5 * SECOND
_PAUSED: Final = 10 * SECOND
#: How often one call pulls: jobs that cannot start take the place of others.
_ROUNDS: Final = 64


class Start(NamedTuple):
    """A job that can start, and by which message and demand."""

    work: Work
    current: Current
    transition: Transition
    demand: int
    #: By which it starts, if no key changes with it.
    message: Message | None = None


class ClaimVerb(CommitVerb):
    """The part of the engine that claims."""

    _dependencies: Dependencies
    _lanes: Lanes
    _openness: CachedSettings[Openness]

    async def claim(  # noqa: C901 - one loop, and the ways in which it ends
        self, session: SessionId, demands: Sequence[Demand], limit: int
    ) -> Claimed:
        """Claim due jobs."""
        await self._store.refresh_time()
        if limit <= 0 or not await self._sessions.may_claim(session):
            return Claimed(self._store.time.now(), ())
        left = [demand.limit for demand in demands]
        lanes, taken = self._lanes.of(demands), list[JobRecord]()
        limits = await ClaimLimits.read(self._store, self._limits, demands)
        for _ in range(_ROUNDS):
            changes = self._store.setting_changes
            try:
                if limits is not None:
                    await limits.begin(taken)
                pulled = await self._lanes.pull(lanes, left, limit - len(taken), limits)
                if changes != self._store.setting_changes:
                    # A change before this claim was heard of at the latest with the answer.
                    limits = await ClaimLimits.read(self._store, self._limits, demands)
                    if limits is not None:
                        await limits.begin(taken)
                if limits is None and len(taken) + len(pulled) < limit:
                    self._lanes.stand_soon(lanes)
                if not pulled:
                    break
                openness = await self._openness.get()
                taken += await self._start(session, demands, left, openness, pulled, limits=limits)
            except EngineError:
                if not taken:
                    raise
                limits = None
                break  # the caller must learn of what has started
            if len(taken) >= limit:
                break
        next_at = await self._next_at(limits, taken)
        return Claimed(self._store.time.now(), tuple(sorted(taken, key=_order)), next_at)

    async def _next_at(
        self, limits: ClaimLimits | None, taken: Sequence[JobRecord]
    ) -> Instant | None:
        """Return when a rate lets the next job start, if a rate holds one back.

        If that cannot be read, what has started is returned nevertheless.
        """
        if limits is None:
            return None
        try:
            return await limits.end(await self._openness.get())
        except EngineError:
            if not taken:
                raise
            return None

    # -- looking at jobs -----------------------------------------------------------------------

    async def _start(
        self,
        session: SessionId,
        demands: Sequence[Demand],
        left: list[int],
        openness: Openness,
        pulled: Sequence[tuple[Work, int]],
        *,
        limits: ClaimLimits | None,
    ) -> list[JobRecord]:
        """Start what can start of the jobs that were pulled."""
        starts: dict[str, Start] = {}
        for work, index, start in await self._look_at(session, demands, openness, pulled):
            if work.job.id in starts:
                await self._ack(work)  # two hints at one job
                continue
            starts[work.job.id] = start._replace(demand=index)
        if not starts:
            return []
        claims = [_held(each) for each in starts.values()]
        # The messages are made while the server stores what is about to be claimed.
        _, prepared = await asyncio.gather(
            self._sessions.intend(session, claims), self._prepare(list(starts.values()))
        )
        stored, problem = await self._write(prepared, demands, session, openness, limits)
        for start in starts.values():
            current = stored.get(start.current.job.id)
            fence = start.transition.head.fence
            if current is not None:
                left[start.demand] -= 1
                self._seen.add(current)
            elif start.current.job.id not in stored and fence is not None:
                self._sessions.drop(fence)
        started = [current.record for current in stored.values() if current is not None]
        if problem is not None and not started:
            raise problem
        return started

    async def _look_at(
        self,
        session: SessionId,
        demands: Sequence[Demand],
        openness: Openness,
        pulled: Sequence[tuple[Work, int]],
    ) -> list[tuple[Work, int, Start]]:
        """Return which of the jobs that were pulled can start, with their messages and demands.

        A message whose job cannot be looked at is delivered again, and delays no other one.
        """
        told = [pair for pair in pulled if pair[0].event is not None]
        named = [pair for pair in pulled if pair[0].event is None]
        looks = [
            await self._try_look(session, demands[index], openness, work) for work, index in told
        ]
        if named:  # they are read, at the same time
            looks += await asyncio.gather(
                *(self._try_look(session, demands[index], openness, work) for work, index in named)
            )
        failed = [each for each in looks if isinstance(each, EngineError)]
        if len(failed) == len(looks):
            raise failed[0]
        return [
            (work, index, look)
            for (work, index), look in zip((*told, *named), looks, strict=True)
            if isinstance(look, Start)
        ]

    async def _try_look(
        self, session: SessionId, demand: Demand, openness: Openness, work: Work
    ) -> Start | EngineError | None:
        try:
            return await self._look(session, demand, openness, work)
        except EngineError as error:
            return error

    async def _look(
        self,
        session: SessionId,
        demand: Demand,
        openness: Openness,
        work: Work,
        *,
        afresh: bool = False,
    ) -> Start | None:
        """Return how the job of a work message starts; or deal with the message."""
        current = await self._present(work, afresh=afresh)
        if current is None or current.head.state not in WAITING:
            if current is None or await self._is_over(work, current):
                await self._ack(work)
            return None
        definition, now = current.definition, max(self._store.time.now(), current.at)
        if current.head.run_at > now and work.run_at != current.head.run_at:
            await self._postpone(work, current)
            return None
        # Only what is due is parked: the hint that opens its queue says that its time has come.
        is_open = (definition.service, definition.queue) not in openness.paused
        if not is_open or (demand.queues and definition.queue not in demand.queues):
            await self._park(work, current, now + (_PARKED if is_open else _PAUSED))
            return None
        transition = None
        if not await self._dependencies.is_unresolved(current):
            transition = decide_claim(current, session, now, demand)
        elif work.event is None:
            await self._followups.resume(current)
        if transition is None:
            # Its resolution is the next hint; past its deadline, maintenance expires it.
            await self._ack(work)
            return None
        return Start(work, current, transition, 0)

    async def _is_over(self, work: Work, current: Current) -> bool:
        """Return whether a message about a job that does not wait is needed no more.

        A claimed job is left to the end of its session: the message by which it was claimed is
        delivered again if its worker does not renew it, and any other one is superfluous. If no
        place of an ended session names it, as after a loss of the last writes of a stream, it is
        given up here, because maintenance does not find it.
        """
        head = current.head
        if head.state is not State.ACTIVE or head.blocked or head.fence is None:
            return True
        held = (await self._sessions.places(head.fence.session)).get(head.fence)
        if held is not None:
            return message_of(held.ack) != message_of(work.ack)
        if not await self._sessions.is_over(head.fence.session):
            return False
        command = LoseLease(head.fence, roll=random.random())  # noqa: S311 - no secret
        decision = decide(current.record, command, self._store.time.now())
        if isinstance(decision, Transition):
            (result,) = await self.commit([decision])
            return isinstance(result, Committed)  # otherwise it is looked at again
        return True

    async def _present(self, work: Work, *, afresh: bool) -> Current | None:
        """Return the job of a work message as it is, or as the message says."""
        if work.event is not None and not afresh:
            # What workers declare is in the demand.
            return await self._store.complete(work.event, declared=False)
        found = await self._store.read(work.job)
        return found if isinstance(found, Current) else None

    async def _ack(self, work: Work) -> None:
        await self._store.link.tell(work.ack, b"+ACK")

    async def _postpone(self, work: Work, current: Current) -> None:
        """Have a job looked at again when its time has come."""
        await hint_later(self._store, current, current.head.run_at)
        await self._ack(work)

    async def _park(self, work: Work, current: Current, at: Instant) -> None:
        """Have a job looked at again then, or when its queue is opened."""
        await hint_later(self._store, current, at, current.definition.queue)
        await self._ack(work)

    # -- starting ------------------------------------------------------------------------------

    async def _prepare(self, starts: Sequence[Start]) -> list[Start]:
        """Return the starts with the messages of those without a key."""
        return [
            each
            if each.current.definition.key_hash is not None
            else each._replace(message=self._plain.message(each.current, each.transition))
            for each in starts
        ]

    async def _write(
        self,
        starts: Sequence[Start],
        demands: Sequence[Demand],
        session: SessionId,
        openness: Openness,
        limits: ClaimLimits | None,
    ) -> tuple[dict[str, Current | None], EngineError | None]:
        """Store `started` of these jobs, all together or each alone.

        Return those that started, with None for those that may have, and what went wrong.
        """
        free = [each for each in starts if each.current.definition.key_hash is None]
        stored: dict[str, Current | None] = {}
        problem: EngineError | None = None
        if limits is None:
            stored, problem = await self._write_plain(free)
        elif len(free) > 1:
            stored |= await self._write_limited(free, limits)
        for each in starts:
            job_id = each.current.job.id
            if problem is not None:
                break
            if job_id in stored:
                continue
            is_tried = limits is None and each.current.definition.key_hash is None
            try:
                current = await self._start_one(
                    each, demands[each.demand], session, openness, limits, is_tried=is_tried
                )
            except EngineError as error:
                problem = error
                if _may_be_stored(error):
                    stored[job_id] = None
            else:
                if current is not None:
                    stored[job_id] = current
        return stored, problem

    async def _write_plain(
        self, starts: Sequence[Start]
    ) -> tuple[dict[str, Current | None], EngineError | None]:
        """Store `started` of jobs that nothing limits; those that have changed are left out."""
        stored: dict[str, Current | None] = {}
        problem: EngineError | None = None
        decided = [(each.current, each.transition) for each in starts]
        messages = [each.message for each in starts if each.message is not None]
        found = await self._plain.store(decided, messages)
        for each, result in zip(starts, found, strict=True):
            if isinstance(result, Current):
                stored[each.current.job.id] = result
            elif isinstance(result, EngineError):
                problem = result
                if _may_be_stored(result):
                    stored[each.current.job.id] = None
        return stored, problem

    async def _write_limited(
        self, starts: Sequence[Start], limits: ClaimLimits
    ) -> dict[str, Current]:
        """Store `started` of the jobs that the limits let start; return them, or none."""
        draft = limits.draft
        ordered = sorted(starts, key=lambda each: _order(each.current.record))
        may_start = await limits.admit(draft, [_claimed(each) for each in ordered])
        starts = [each for each, may in zip(ordered, may_start, strict=True) if may]
        for each in starts:
            draft.know(each.current)
            draft.transition(each.current, each.transition)
        if not isinstance(await draft.write(), Written):
            return {}
        return {each.current.job.id: draft.written(each.current.job.id) for each in starts}

    async def _start_one(
        self,
        start: Start,
        demand: Demand,
        session: SessionId,
        openness: Openness,
        limits: ClaimLimits | None,
        *,
        is_tried: bool,
    ) -> Current | None:
        """Store `started` of one job; None if it cannot start now.

        `is_tried`: it was tried before, and the job has changed since it was looked at.
        """
        current: Start | None = start
        if is_tried:
            current = await self._look_again(start, demand, session, openness)
        while current is not None:
            work = current.work
            draft = Draft(self._store)
            draft.know(current.current)
            if await self._has_slot(draft, current):
                if limits is not None and not all(await limits.admit(draft, [_claimed(current)])):
                    await self._park(work, current.current, draft.now)
                    return None
                draft.transition(current.current, current.transition)
                if isinstance(await draft.write(), Written):
                    return draft.written(current.current.job.id)
            elif draft.is_empty or isinstance(await draft.write(), Written):
                await self._ack(work)
                return None
            current = await self._look_again(current, demand, session, openness)
        return None

    async def _look_again(
        self, start: Start, demand: Demand, session: SessionId, openness: Openness
    ) -> Start | None:
        """Look at a job that has changed since, to start it with the fence that was intended."""
        found = await self._look(session, demand, openness, start.work, afresh=True)
        fence = start.transition.head.fence
        if found is None or fence is None:
            return found
        self._sessions.expect(fence, found.current.sequence)
        return found._replace(transition=_with_fence(found, fence))

    async def _has_slot(self, draft: Draft, start: Start) -> bool:
        """Stage that a job starts with a slot of its key, if it has or gets one."""
        current, fence = start.current, start.transition.head.fence
        definition = current.definition
        if definition.key_hash is None or fence is None:
            return True
        line = Line(draft, definition.service, definition.type, definition.key_hash)
        state = await line.find(await line.read(definition.key or ""), current)
        before = state
        if not state.has(definition.id) and state.slot_of(definition.id) is None:
            # An incomplete write has left it out of its line; or it does not wait any more.
            order = current.created.request.order
            waiter = keys.waiter_of(*current.record, order, is_unresolved=False)
            state = keys.enter(state._replace(latest=max(state.latest, order)), waiter)
        after, handed, *_ = await line.hand_over(state, draft.now, [definition.id])
        if after.slot_of(definition.id) is None and start.work.event is None:
            # It was hinted at because it is its turn, so another slot may be left over.
            over = await line.over(after)
            freed = after._replace(slots=tuple(each for each in after.slots if each not in over))
            after, more, *_ = await line.hand_over(freed, draft.now, [definition.id])
            handed += more
        for job_id in handed:
            other = None if job_id == definition.id else await draft.job(job_id)
            if other is not None:
                draft.hint(other)
        has_slot = after.slot_of(definition.id) is not None
        if has_slot:
            after = keys.give_to_attempt(after, definition.id, fence)
        elif state is not before:
            draft.guard(current.job, current.sequence, current.head.version)
        if after.slots != before.slots or state is not before:
            await line.put(after)
        return has_slot


def decide_claim(
    current: Current, session: SessionId, now: Instant, demand: Demand
) -> Transition | None:
    """Decide on a claim of a job that was found due; None if it expires instead.

    It stays due when the clock is set back afterwards. The policy that the worker declares is in
    force from then on.
    """
    definition, head = current.record
    declared = demand.policy_of(definition.type)
    if declared is not None or not head.claims:
        created = current.created.request.policy
        policy = in_force(created, declared, definition.attempts, definition.timeout)
        definition = definition._replace(policy=policy)
    due = head._replace(run_at=min(head.run_at, now))
    fence = Fence(session, secrets.randbits(62) + 1)
    decision = decide(JobRecord(definition, due), Claim(fence), now)
    if not isinstance(decision, Transition):
        return None
    return decision._replace(before=head, head=decision.head._replace(run_at=head.run_at))


def _may_be_stored(error: EngineError) -> bool:
    """Return whether a write that failed may be stored nevertheless, now or later."""
    return isinstance(error, OutcomeUnknown | EngineClosed | AccessDenied)


def _with_fence(start: Start, fence: Fence) -> Transition:
    """Return the decision with the fence that was written down as intended."""
    transition = start.transition
    return transition._replace(
        head=transition.head._replace(fence=fence),
        event=transition.event._replace(fence=fence),
        command=Claim(fence),
    )


def _held(start: Start) -> Held:
    definition, fence = start.current.definition, start.transition.head.fence
    token = 0 if fence is None else fence.token
    return Held(
        definition.service, definition.type, definition.id, definition.row, token,
        start.work.ack, start.current.sequence,
    )  # fmt: skip


def _claimed(start: Start) -> JobRecord:
    """Return the job as it is once it has started."""
    return JobRecord(start.transition.definition, start.transition.head)


def _order(record: JobRecord) -> tuple[int, Instant, int]:
    """Return by what claimed jobs are sorted."""
    return -record.definition.priority, record.head.run_at, record.definition.row
