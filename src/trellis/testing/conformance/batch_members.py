"""Members of batches: what may join one, and how long members are kept."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import pytest

from trellis.core.admission import Reason
from trellis.core.batches import KEEP_BATCHES, fan_in_id
from trellis.core.commands import Cancel, Complete, Dismiss, Fail, Retry
from trellis.core.durations import micros
from trellis.core.job import Dedupe, JobRecord, NewJob, Relations
from trellis.core.policy import KeyPolicy
from trellis.core.states import State
from trellis.engines.audit import By
from trellis.engines.batches import BatchFilter
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Coalesced,
    Committed,
    JobFilter,
    Rejected,
    Replaced,
)
from trellis.testing.builders import (
    SERVICE,
    TYPE,
    a_fence,
    a_job,
    a_keyed_job,
    fence_of,
)
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.batches import (
    BOOM,
    ONCE,
    THEN,
    a_batch,
    end,
    fan_ins,
    member_of,
    opened,
    status,
)
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    claim_one,
    decided,
    ids,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite


class TestJoining(EngineSuite):
    """What may become a member of a batch, and what may not."""

    async def test_a_member_that_is_created_again_is_found_in_a_sealed_and_a_finished_batch(
        self, engine: Engine
    ) -> None:
        new, _ = await opened(engine, 0)
        member, other = member_of(new), member_of(new)
        await accept(engine, member, other)
        await engine.seal_batch(new.id)
        session = await a_session(engine)
        for taken in await claim(engine, session):
            before = await status(engine, new)
            assert await engine.create([member, other]) == [Accepted(member.id), Accepted(other.id)]
            assert await status(engine, new) == before
            await end(engine, taken)
        assert (await status(engine, new)).batch.state == "finished"
        assert await engine.create([member]) == [Accepted(member.id)]
        assert (await status(engine, new)).counts == {State.COMPLETED: 2}
        assert len(await fan_ins(engine)) == 1
        assert (await engine.open_batch(new)) == (await status(engine, new)).batch

    async def test_a_batch_in_a_sealed_batch_is_found_when_it_is_opened_again(
        self, engine: Engine
    ) -> None:
        outer, _ = await opened(engine, 1)
        inner, _ = await opened(engine, 1, parent=outer.id)
        await engine.seal_batch(outer.id)
        assert await engine.open_batch(inner) == (await status(engine, inner)).batch
        assert await engine.open_batch(a_batch(parent=outer.id)) is None

    async def test_a_sealed_batch_takes_no_more_members(self, engine: Engine) -> None:
        new, _ = await opened(engine, 1)
        await engine.seal_batch(new.id)
        late = member_of(new)
        assert await engine.create([late]) == [Rejected(Reason.BATCH_CLOSED, None)]
        assert (await engine.load([late.id])).records == (None,)

    async def test_an_unknown_batch_takes_no_members(self, engine: Engine) -> None:
        late = member_of(a_batch())
        assert await engine.create([late]) == [Rejected(Reason.BATCH_UNKNOWN, None)]

    async def test_a_repeated_call_is_one_member(self, engine: Engine) -> None:
        new, _ = await opened(engine, 0)
        job = member_of(new)
        assert await engine.create([job]) == await engine.create([job]) == [Accepted(job.id)]
        assert (await status(engine, new)).total == 1
        await engine.seal_batch(new.id)
        assert await engine.create([job]) == [Accepted(job.id)]

    @pytest.mark.parametrize("others", [0, 1])
    async def test_a_coalesced_member_stands_for_the_existing_job(
        self, engine: Engine, others: int
    ) -> None:
        session = await a_session(engine)
        existing = await accept_one(engine, a_job(dedupe=Dedupe("d", "unfinished")))
        new, _ = await opened(engine, 0)
        twin = member_of(new, dedupe=Dedupe("d", "unfinished"))
        (answer,) = await engine.create([twin])
        assert isinstance(answer, Coalesced)
        assert ids([each.record for each in await engine.members(new.id)]) == ids([existing])
        await engine.seal_batch(new.id)
        assert await fan_ins(engine) == []
        await accept(engine, *(a_job() for _ in range(others)))
        taken = await claim(engine, session)
        ends = [await decided(engine, e, Complete(fence_of(e))) for e in taken]
        assert await engine.commit(ends) == [Committed()] * len(ends)
        assert len(await fan_ins(engine)) == 1

    async def test_jobs_are_found_by_batch_and_by_parent(self, engine: Engine) -> None:
        linked = await accept_one(engine, a_job(dedupe="d"))
        new, members = await opened(engine, 2)
        await opened(engine, 1)
        await engine.create([member_of(new, dedupe="d")])
        found = await engine.find(JobFilter(batch=new.id))
        assert ids(list(found.jobs)) == ids([*reversed(members), linked])
        assert (await engine.count(JobFilter(batch=new.id))).total == 3
        parent = members[0].definition.id
        child = await accept_one(engine, a_job(relations=Relations(parent=parent)))
        assert (await engine.find(JobFilter(parent=parent))).jobs == (child,)
        assert (await engine.find(JobFilter(parent=new.id))).jobs == ()

    async def test_one_that_has_ended_before_is_a_finished_member(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job(idempotency_key="k"))
        await end(engine, taken)
        new, _ = await opened(engine, 0)
        (answer,) = await engine.create([member_of(new, idempotency_key="k")])
        assert isinstance(answer, Coalesced)
        assert (await status(engine, new)).finished == 1
        await engine.seal_batch(new.id)
        assert len(await fan_ins(engine)) == 1

    async def test_a_rejected_job_is_no_member(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}")
        await accept_one(engine, a_keyed_job("u", rule))
        new, _ = await opened(engine, 0)
        second = a_keyed_job("u", rule, relations=Relations(batch=new.id))
        (answer,) = await engine.create([second])
        assert isinstance(answer, Rejected)
        assert (await status(engine, new)).total == 0

    async def test_a_replaced_member_has_finished(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "replace-oldest")
        new, _ = await opened(engine, 0)
        old = a_keyed_job("u", rule, relations=Relations(batch=new.id))
        await accept_one(engine, old)
        await engine.seal_batch(new.id)
        other = a_keyed_job("u", rule)
        assert await engine.create([other]) == [Replaced(other.id, old.id)]
        assert len(await fan_ins(engine)) == 1

    async def test_a_running_member_adds_members_to_a_sealed_batch(self, engine: Engine) -> None:
        new, (member,) = await opened(engine, 1)
        await engine.seal_batch(new.id)
        taken = await claim_one(engine, await a_session(engine))
        relations = Relations(parent=member.definition.id, batch=new.id)
        child = member_of(new, relations=relations)._replace(spawner=fence_of(taken))
        assert await engine.create([child]) == [Accepted(child.id)]
        await end(engine, taken)
        assert await fan_ins(engine) == []
        await end(engine, await claim_one(engine, await a_session(engine)))
        assert len(await fan_ins(engine)) == 1

    async def test_an_attempt_that_is_over_adds_nothing(self, engine: Engine) -> None:
        new, (member,) = await opened(engine, 1)
        taken = await claim_one(engine, await a_session(engine))
        relations = Relations(parent=member.definition.id, batch=new.id)
        child = member_of(new, relations=relations)
        for fence in (fence_of(taken), a_fence()):
            if fence == fence_of(taken):
                await end(engine, taken)
            late = child._replace(spawner=fence)
            assert await engine.create([late]) == [Rejected(Reason.ATTEMPT_OVER, None)]
        assert (await status(engine, new)).total == 1

    async def test_a_keyed_fan_in_job_waits_for_its_key(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}")
        session = await a_session(engine)
        holder = await start(engine, session, a_keyed_job("u", rule))
        then = a_keyed_job("u", rule, queue="reports")
        new, _ = await opened(engine, 0, then=then)
        await engine.seal_batch(new.id)
        demand = Demand(SERVICE, (TYPE,), 10)
        assert await claim(engine, session, demand) == []
        await end(engine, holder)
        (fan_in,) = await claim(engine, session, demand)
        assert fan_in.definition.id == fan_in_id(new.id, then)


class TestBatchRetention(EngineSuite):
    """Members stay while their batch has not finished, and while its fan-in job may read them."""

    async def test_members_of_an_unfinished_batch_are_kept(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new, _ = await opened(engine, 1, then=None)
        taken = await claim_one(engine, await a_session(engine))
        await end(engine, taken)
        plain = await start(engine, await a_session(engine), a_job())
        await end(engine, plain)
        job_id = taken.definition.id
        assert await engine.remove([job_id]) == ["in_batch"]
        clock.advance("60d")
        assert await engine.prune(100) >= 1
        assert (await engine.load([plain.definition.id])).records == (None,)
        assert await engine.prune(100) == 0
        assert (await status(engine, new)).finished == 1
        await engine.seal_batch(new.id)
        clock.advance("1h")
        assert await engine.prune(100) == 1
        assert (await engine.load([job_id])).records == (None,)

    @pytest.mark.parametrize("state", [State.PENDING, State.ACTIVE, State.RETRY, State.DEAD])
    async def test_members_are_kept_until_the_fan_in_job_has_read_them(
        self, engine: Engine, clock: ManualClock, state: State
    ) -> None:
        then = THEN._replace(policy=ONCE) if state is State.DEAD else THEN
        new, (member,) = await opened(engine, 1, then=then)
        await settle(engine, member, Cancel())
        await engine.seal_batch(new.id)
        fan_in = await _fan_in_that_is(engine, state)
        clock.advance("40d")
        assert await engine.prune(100) == 0
        assert await engine.remove([member.definition.id]) == ["in_batch"]
        assert [each.record for each in await engine.members(new.id)] == [
            await the(engine, member.definition.id)
        ]
        command = Dismiss() if state is State.DEAD else Cancel(force=True)
        await settle(engine, fan_in, command)
        clock.advance("1h")
        assert await engine.prune(100) == 1
        assert await engine.members(new.id) == []

    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED])
    async def test_the_end_of_the_fan_in_job_frees_the_members(
        self, engine: Engine, state: State
    ) -> None:
        new, (member,) = await opened(engine, 1)
        await settle(engine, member, Cancel())
        await engine.seal_batch(new.id)
        assert await engine.remove([member.definition.id]) == ["in_batch"]
        await end(engine, await _claimed_fan_in(engine), state)
        assert await engine.remove([member.definition.id]) == ["removed"]
        assert (await status(engine, new)).total == 0

    async def test_a_fan_in_job_that_runs_again_keeps_what_is_left(self, engine: Engine) -> None:
        new, members = await opened(engine, 2)
        for member in members:
            await settle(engine, member, Cancel())
        await engine.seal_batch(new.id)
        failed = await end(engine, await _claimed_fan_in(engine), State.FAILED)
        assert await engine.remove([members[0].definition.id]) == ["removed"]
        await settle(engine, failed, Retry("ann"))
        assert await engine.remove([members[1].definition.id]) == ["in_batch"]

    @pytest.mark.parametrize("then", [THEN, None])
    async def test_without_a_fan_in_job_members_are_free_when_the_batch_has_finished(
        self, engine: Engine, then: NewJob | None
    ) -> None:
        new, (member,) = await opened(engine, 1, then=then)
        await settle(engine, member, Cancel())
        if then is None:
            await engine.seal_batch(new.id)
        else:
            await engine.cancel_batch(new.id, By("ann"))
        assert await engine.remove([member.definition.id]) == ["removed"]
        assert (await status(engine, new)).total == 0

    async def test_pruning_passes_over_members_that_are_kept(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        _, members = await opened(engine, 3)
        for member in members:
            await settle(engine, member, Cancel())
        clock.advance("1s")
        plain = await accept_one(engine, a_job())
        await settle(engine, plain, Cancel())
        clock.advance("60d")
        assert await engine.prune(2) == 1
        assert (await engine.load([plain.definition.id])).records == (None,)
        assert await engine.prune(2) == 0

    async def test_a_batch_without_members_is_removed_in_the_end(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new, (member,) = await opened(engine, 1, then=None)
        still, _ = await opened(engine, 0)
        await settle(engine, member, Cancel())
        await engine.seal_batch(new.id)
        clock.advance("8d")
        await engine.prune(100)
        assert await engine.batch(new.id) is not None
        clock.advance(KEEP_BATCHES / micros("1s"))
        await engine.prune(100)
        assert await engine.batch(new.id) is None
        assert await engine.batch(still.id) is not None

    async def test_a_batch_stays_while_its_fan_in_job_may_read_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new, _ = await opened(engine, 0)
        await engine.seal_batch(new.id)
        clock.advance(2 * KEEP_BATCHES / micros("1s"))
        await engine.prune(100)
        assert await engine.batch(new.id) is not None
        await end(engine, await _claimed_fan_in(engine))
        await engine.prune(100)
        assert await engine.batch(new.id) is None

    async def test_a_batch_stays_as_long_as_those_inside_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        outer, _ = await opened(engine, 0, then=None)
        inner, _ = await opened(engine, 0, then=None, parent=outer.id)
        await engine.seal_batch(outer.id)
        clock.advance("1s")
        await engine.seal_batch(inner.id)
        clock.advance(KEEP_BATCHES / micros("1s"))
        assert (await status(engine, inner)).batch.new.parent == outer.id
        for left in (1, 0):
            await engine.prune(1)
            assert len(await engine.batches(BatchFilter())) == left


async def _claimed_fan_in(engine: Engine) -> JobRecord:
    return await claim_one(engine, await a_session(engine), Demand(SERVICE, ("report",), 1))


async def _fan_in_that_is(engine: Engine, state: State) -> JobRecord:
    """Return the fan-in job after bringing it into this state."""
    if state is State.PENDING:
        return (await fan_ins(engine))[0]
    taken = await _claimed_fan_in(engine)
    if state is State.ACTIVE:
        return taken
    if state is State.DEAD:
        return await end(engine, taken, State.DEAD)
    return await settle(engine, taken, Fail(fence_of(taken), BOOM))
