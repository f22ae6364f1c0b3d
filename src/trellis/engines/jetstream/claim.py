"""`claim`: work messages say which jobs to look at; a job starts by its fenced `started` alone.

Each type has a consumer of the work queue, made by the first worker that claims it. A message stays
unacknowledged until the attempt is settled: its delivery is repeated if no worker renews it. What
cannot start now is scheduled, or its message is acknowledged because another hint will come.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from trellis.core.commands import Claim
from trellis.core.durations import SECOND, Instant
from trellis.core.job import Fence, JobRecord, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import in_force
from trellis.core.states import WAITING, State
from trellis.engines.demand import Demand
from trellis.engines.jetstream import keys
from trellis.engines.jetstream.claim_limits import ClaimLimits
from trellis.engines.jetstream.commit import Seen
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.hints import Work, read_work, schedule
from trellis.engines.jetstream.limits import LimitTable
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.sessions import Held, SessionTable
from trellis.engines.jetstream.settings import Openness
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import consumer_of
from trellis.engines.values import Claimed

#: How long a delivery may go without a sign of its worker, and how often it is repeated.
ACK_WAIT: Final = 30 * SECOND
MAX_DELIVERIES: Final = 5
#: When a job is looked at again that waits in a queue which is paused, or which no worker here
#: demands.
_PARKED: Final = 5 * SECOND
#: How often one call pulls: jobs that cannot start take the place of others.
_ROUNDS: Final = 64


class Start(NamedTuple):
    """A job that can start, and by which message and demand."""

    work: Work
    current: Current
    transition: Transition
    demand: int


class ClaimVerb:
    """The part of the engine that claims."""

    _store: Store
    _sessions: SessionTable
    _seen: Seen
    _dependencies: Dependencies
    _consumers: set[tuple[str, str]]
    _turn: int
    _limits: LimitTable

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim due jobs."""
        if limit <= 0 or await self._sessions.is_over(session):
            return Claimed(self._store.time.now(), ())
        openness, limits = await asyncio.gather(
            Openness.read(self._store), ClaimLimits.read(self._store, self._limits, demands)
        )
        left = [demand.limit for demand in demands]
        taken: list[JobRecord] = []
        for _ in range(_ROUNDS):
            if limits is not None:
                await limits.begin(taken)
            pulled = await self._pull(demands, left, limit - len(taken), limits)
            if not pulled:
                break
            started = await self._start(session, demands, left, openness, pulled, limits=limits)
            taken += started
            if len(taken) >= limit:
                break
        next_at = None if limits is None else await limits.end(openness)
        return Claimed(self._store.time.now(), tuple(sorted(taken, key=_order)), next_at)

    # -- work messages -------------------------------------------------------------------------

    async def _pull(
        self,
        demands: Sequence[Demand],
        left: Sequence[int],
        limit: int,
        limits: ClaimLimits | None,
    ) -> list[tuple[Work, int]]:
        """Return work messages, with the index of their demand: at most `limit` in all."""
        lanes = [
            (index, demand.service, job_type)
            for index, demand in enumerate(demands)
            for job_type in demand.types
            if left[index] > 0
        ]
        self._turn += 1
        start = self._turn % len(lanes) if lanes else 0
        room, of_demand = limit, list(left)
        found: list[tuple[Work, int]] = []
        for place, (index, service, job_type) in enumerate(lanes[start:] + lanes[:start]):
            # Every type gets its share of the room before one gets all of it.
            share = -(-room // (len(lanes) - place))
            size = min(share, of_demand[index])
            allowed = None if limits is None else limits.room(service, job_type)
            if allowed is not None:
                size = min(size, -(-allowed // (len(lanes) - place)))
            if size <= 0:
                continue
            works = await self._pull_lane(service, job_type, size)
            if limits is not None:
                limits.pull(service, job_type, len(works))
            room -= len(works)
            of_demand[index] -= len(works)
            found += [(work, index) for work in works]
        return found

    async def _pull_lane(self, service: str, job_type: str, limit: int) -> list[Work]:
        link, stream = self._store.link, self._store.subjects.work
        await self._provide_consumer(service, job_type)
        messages = await link.pull(stream, consumer_of(service, job_type), limit)
        works = []
        for message in messages:
            work = read_work(self._store.subjects, message)
            if work is None:
                await link.tell(message.reply, b"+TERM")
            else:
                works.append(work)
        return works

    async def _provide_consumer(self, service: str, job_type: str) -> None:
        if (service, job_type) in self._consumers:
            return
        name, stream = consumer_of(service, job_type), self._store.subjects.work
        subject = self._store.subjects.work_of(service, job_type)
        await self._store.link.api(
            f"CONSUMER.CREATE.{stream}.{name}.{subject}",
            {
                "stream_name": stream,
                "config": {
                    "name": name,
                    "durable_name": name,
                    "filter_subject": subject,
                    "ack_policy": "explicit",
                    "ack_wait": ACK_WAIT * 1000,
                    "max_deliver": MAX_DELIVERIES,
                    "max_ack_pending": -1,
                },
            },
        )
        self._consumers.add((service, job_type))

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
        looks = (self._look(session, demands[index], openness, work) for work, index in pulled)
        for (work, index), start in zip(pulled, await asyncio.gather(*looks), strict=True):
            if start is None:
                continue
            if work.job.id in starts:
                await self._ack(work)  # two hints at one job
                continue
            starts[work.job.id] = start._replace(demand=index)
        if not starts:
            return []
        await self._sessions.intend(session, [_held(each) for each in starts.values()])
        started = await self._write(list(starts.values()), demands, session, openness, limits)
        for start in starts.values():
            current = started.get(start.current.job.id)
            fence = start.transition.head.fence
            if current is not None:
                left[start.demand] -= 1
                self._seen.add(current)
            elif fence is not None:
                self._sessions.drop(fence)
        return [current.record for current in started.values()]

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
            # The first delivery about a claimed job is not the one by which it was claimed. Others
            # are left to the end of the session: maintenance settles what is lost.
            is_claimed = current is not None and current.head.state is State.ACTIVE
            if not is_claimed or work.deliveries == 1:
                await self._ack(work)
            return None
        definition, now = current.definition, max(self._store.time.now(), current.at)
        is_open = (definition.service, definition.queue) not in openness.paused
        if not is_open or (demand.queues and definition.queue not in demand.queues):
            await self._park(work, current, now)
            return None
        if current.head.run_at > now and work.run_at != current.head.run_at:
            await self._postpone(work, current)
            return None
        transition = None
        if not await self._dependencies.is_unresolved(current):
            transition = decide_claim(current, session, now, demand)
        if transition is None:
            # Its resolution is the next hint; past its deadline, maintenance expires it.
            await self._ack(work)
            return None
        return Start(work, current, transition, 0)

    async def _present(self, work: Work, *, afresh: bool) -> Current | None:
        """Return the job of a work message as it is, or as the message says."""
        if work.event is not None and not afresh:
            return await self._store.complete(work.event)
        found = await self._store.read(work.job)
        return found if isinstance(found, Current) else None

    async def _ack(self, work: Work) -> None:
        await self._store.link.tell(work.ack, b"+ACK")

    async def _postpone(self, work: Work, current: Current) -> None:
        """Have a job looked at again when its time has come."""
        run_at = current.head.run_at
        await self._store.link.write(
            schedule(self._store.subjects, current.job, run_at, run_at, "")
        )
        await self._ack(work)

    async def _park(self, work: Work, current: Current, now: Instant) -> None:
        """Have a job looked at again a little later, or when its queue is opened."""
        run_at = current.head.run_at
        at = max(now + _PARKED, run_at)
        queue = current.definition.queue
        await self._store.link.write(schedule(self._store.subjects, current.job, at, run_at, queue))
        await self._ack(work)

    # -- starting ------------------------------------------------------------------------------

    async def _write(
        self,
        starts: Sequence[Start],
        demands: Sequence[Demand],
        session: SessionId,
        openness: Openness,
        limits: ClaimLimits | None,
    ) -> dict[str, Current]:
        """Store `started` of these jobs, all together or each alone; return those that started."""
        free = [each for each in starts if each.current.definition.key_hash is None]
        started: dict[str, Current] = {}
        if len(free) > 1:
            started = await self._write_together(free, limits)
        for each in starts:
            if each.current.job.id not in started:
                current = await self._start_one(
                    each, demands[each.demand], session, openness, limits
                )
                if current is not None:
                    started[each.current.job.id] = current
        return started

    async def _write_together(
        self, starts: Sequence[Start], limits: ClaimLimits | None
    ) -> dict[str, Current]:
        """Store `started` of the jobs that the limits let start; return them, or none."""
        draft = Draft(self._store) if limits is None else limits.draft
        if limits is not None:
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
    ) -> Current | None:
        """Store `started` of one job; None if it cannot start now."""
        current: Start | None = start
        while current is not None:
            draft = Draft(self._store)
            draft.know(current.current)
            if await self._has_slot(draft, current):
                if limits is not None and not all(await limits.admit(draft, [_claimed(current)])):
                    await self._park(start.work, current.current, draft.now)
                    return None
                draft.transition(current.current, current.transition)
                if isinstance(await draft.write(), Written):
                    return draft.written(current.current.job.id)
            elif draft.is_empty or isinstance(await draft.write(), Written):
                await self._ack(start.work)
                return None
            fence = current.transition.head.fence
            current = await self._look(session, demand, openness, start.work, afresh=True)
            if current is not None and fence is not None:
                current = current._replace(transition=_with_fence(current, fence))
        return None

    async def _has_slot(self, draft: Draft, start: Start) -> bool:
        """Stage that a job starts with a slot of its key, if it has or gets one."""
        definition, fence = start.current.definition, start.transition.head.fence
        if definition.key_hash is None or fence is None:
            return True
        subject = self._store.subjects.key(definition.service, definition.type, definition.key_hash)
        state = await draft.value(subject, keys.CODEC)
        if state is None:
            return False
        after, handed = keys.hand_over(state, draft.now, [definition.id])
        for job_id in handed:
            other = None if job_id == definition.id else await draft.job(job_id)
            if other is not None:
                draft.hint(other)
        has_slot = after.slot_of(definition.id) is not None
        if has_slot:
            after = keys.give_to_attempt(after, definition.id, fence)
        if after != state:
            draft.put(subject, after)
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
        definition.service, definition.type, definition.id, definition.row, token, start.work.ack
    )


def _claimed(start: Start) -> JobRecord:
    """Return the job as it is once it has started."""
    return JobRecord(start.transition.definition, start.transition.head)


def _order(record: JobRecord) -> tuple[int, Instant, int]:
    """Return by what claimed jobs are sorted."""
    return -record.definition.priority, record.head.run_at, record.definition.row
