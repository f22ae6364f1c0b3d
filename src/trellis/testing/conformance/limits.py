"""Limits over the fleet: how many jobs of a queue or a type run at a time, and start per time."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and counts in assertions

from __future__ import annotations

from trellis.core.commands import Cancel, Fail, LoseLease, Release
from trellis.core.durations import SECOND
from trellis.core.events import JsonValue
from trellis.core.job import Failure, JobRecord, Prerequisite
from trellis.core.limits import Limit, LimitSetting, Override, Part, Reset, Scope
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import Claimed, QueueSettings
from trellis.testing.builders import (
    QUEUE,
    SERVICE,
    TYPE,
    a_demand,
    a_job,
    complete,
    fence_of,
)
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    claim_answer,
    ids,
    reap_lapsed,
    renew,
    settle,
)
from trellis.testing.conformance.hints import hint_after
from trellis.testing.conformance.suite import Another, EngineSuite, needs

QUEUE_SCOPE = Scope("queue", SERVICE, QUEUE)
TYPE_SCOPE = Scope("type", SERVICE, TYPE)
BY = By("ada", "the mail server is slow")
BOTH: frozenset[Part] = frozenset({"active", "rate"})


async def limit(engine: Engine, scope: Scope, limit: Limit) -> LimitSetting:
    """Set a limit as an operator."""
    return await engine.change_limit(scope, Override(limit, BOTH), BY)


async def some_jobs(
    engine: Engine, count: int, *, type_: str = TYPE, queue: str = QUEUE
) -> list[JobRecord]:
    """Create jobs of the default type in the default queue, or of other ones."""
    return await accept(engine, *(a_job(type=type_, queue=queue) for _ in range(count)))


class TestConcurrencyLimits(EngineSuite):
    """No more jobs run at a time than a limit allows, over all sessions."""

    async def test_sessions_share_the_limit_of_a_queue(self, engine: Engine) -> None:
        jobs = await some_jobs(engine, 5)
        await limit(engine, QUEUE_SCOPE, Limit(active=3))
        first, second = await a_session(engine), await a_session(engine)
        assert ids(await claim(engine, first, limit=2)) == ids(jobs[:2])
        assert ids(await claim(engine, second)) == ids(jobs[2:3])
        assert await claim(engine, first) == await claim(engine, second) == []

    @needs("processes")
    async def test_engine_objects_share_the_limit(self, engine: Engine, another: Another) -> None:
        other = await another()
        session, elsewhere = await a_session(engine), await a_session(other)
        assert await claim(other, elsewhere) == []
        jobs = await some_jobs(engine, 3)
        await limit(engine, QUEUE_SCOPE, Limit(active=2))
        assert ids(await claim(other, elsewhere, limit=1)) == ids(jobs[:1])
        assert ids(await claim(engine, session)) == ids(jobs[1:2])
        assert await claim(other, elsewhere) == []

    async def test_a_settled_job_lets_the_next_one_start(self, engine: Engine) -> None:
        jobs = await some_jobs(engine, 3)
        await limit(engine, QUEUE_SCOPE, Limit(active=1))
        session = await a_session(engine)
        for job in jobs:
            (taken,) = await claim(engine, session)
            assert taken.definition.id == job.definition.id
            assert await claim(engine, session) == []
            await settle(engine, taken, complete(taken))

    async def test_the_limit_of_a_type_counts_its_jobs_in_all_queues(self, engine: Engine) -> None:
        await limit(engine, TYPE_SCOPE, Limit(active=2))
        session = await a_session(engine)
        here = await some_jobs(engine, 1)
        there = await some_jobs(engine, 3, queue="others")
        assert ids(await claim(engine, session)) == ids([*here, *there[:1]])
        assert await claim(engine, session) == []

    async def test_types_in_one_queue_share_its_limit_in_the_order_of_claims(
        self, engine: Engine
    ) -> None:
        await limit(engine, QUEUE_SCOPE, Limit(active=3))
        session, both = await a_session(engine), a_demand(TYPE, "refund")
        jobs = [
            await accept_one(engine, a_job(type=name, priority=priority))
            for name, priority in ((TYPE, 0), ("refund", 0), (TYPE, 0), ("refund", 2), (TYPE, 0))
        ]
        expected = [jobs[3], jobs[0], jobs[1]]
        assert ids(await claim(engine, session, both)) == ids(expected)
        assert await claim(engine, session, both) == []

    async def test_the_limits_of_a_queue_and_of_a_type_hold_together(self, engine: Engine) -> None:
        await limit(engine, QUEUE_SCOPE, Limit(active=3))
        await limit(engine, TYPE_SCOPE, Limit(active=1))
        session, both = await a_session(engine), a_demand(TYPE, "refund")
        invoices = await some_jobs(engine, 3)
        refunds = await some_jobs(engine, 3, type_="refund")
        taken = await claim(engine, session, both)
        assert ids(taken) == ids([invoices[0], *refunds[:2]])
        assert await claim(engine, session, both) == []

    async def test_other_queues_are_not_limited(self, engine: Engine) -> None:
        await limit(engine, QUEUE_SCOPE, Limit(active=1))
        session = await a_session(engine)
        limited = await some_jobs(engine, 2)
        free = await some_jobs(engine, 3, type_="refund", queue="refunds")
        demand = a_demand(TYPE, "refund")
        assert ids(await claim(engine, session, demand)) == ids([limited[0], *free])

    async def test_a_lowered_limit_starts_nothing_until_enough_have_ended(
        self, engine: Engine
    ) -> None:
        await limit(engine, QUEUE_SCOPE, Limit(active=3))
        await some_jobs(engine, 5)
        session = await a_session(engine)
        running = await claim(engine, session)
        await limit(engine, QUEUE_SCOPE, Limit(active=1))
        for taken in running:
            assert await claim(engine, session) == []
            await settle(engine, taken, complete(taken))
        assert len(await claim(engine, session)) == 1

    async def test_a_raised_limit_and_none_count_at_once(self, engine: Engine) -> None:
        await some_jobs(engine, 6)
        await limit(engine, QUEUE_SCOPE, Limit(active=1))
        session = await a_session(engine)
        assert len(await claim(engine, session)) == 1
        await limit(engine, QUEUE_SCOPE, Limit(active=3))
        assert len(await claim(engine, session)) == 2
        await limit(engine, QUEUE_SCOPE, Limit())
        assert len(await claim(engine, session)) == 3

    async def test_an_ended_attempt_counts_while_its_handler_may_still_run(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 3)
        await limit(engine, QUEUE_SCOPE, Limit(active=1))
        session = await a_session(engine, "30s")
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Cancel(force=True))
        assert await claim(engine, session) == []
        await renew(engine, session, stopped=(fence_of(taken),))
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Cancel(force=True))
        clock.advance("29s")
        await renew(engine, session)
        assert await claim(engine, session) == []
        clock.advance("1s")
        assert len(await claim(engine, session)) == 1, "after one lease it counts no more"

    async def test_the_ended_attempt_of_a_job_that_another_follows_counts_as_well(
        self, engine: Engine
    ) -> None:
        first, _ = await some_jobs(engine, 2)
        await accept_one(engine, a_job(queue="others", after=(Prerequisite(first.definition.id),)))
        await limit(engine, QUEUE_SCOPE, Limit(active=1))
        session = await a_session(engine)
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Cancel(force=True))
        assert await claim(engine, session, a_demand(queue=QUEUE)) == []
        await renew(engine, session, stopped=(fence_of(taken),))
        assert len(await claim(engine, session, a_demand(queue=QUEUE))) == 1

    async def test_a_lost_job_counts_until_its_session_is_reaped(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        jobs = await some_jobs(engine, 2)
        await limit(engine, QUEUE_SCOPE, Limit(active=1))
        lost, session = await a_session(engine, "30s"), await a_session(engine, "1h")
        (taken,) = await claim(engine, lost)
        clock.advance("31s")
        assert await claim(engine, session) == []
        await reap_lapsed(engine)
        await settle(engine, taken, LoseLease(fence_of(taken), stopped=False))
        assert len(await claim(engine, session)) == 1
        assert len(jobs) == 2

    async def test_a_claim_takes_no_more_limited_jobs_than_can_start_at_once(
        self, engine: Engine
    ) -> None:
        await limit(engine, QUEUE_SCOPE, Limit(active=10))
        session = await a_session(engine)
        await some_jobs(engine, 5)
        await some_jobs(engine, 5, type_="refund", queue="refunds")
        demand = Demand(SERVICE, (TYPE, "refund"), 100, free=2)
        taken = await claim(engine, session, demand)
        assert [each.definition.type for each in taken].count(TYPE) == 2
        assert len(taken) == 7
        assert await claim(engine, session, demand._replace(free=0)) == []

    async def test_a_settlement_wakes_those_who_wait_for_the_limit(self, engine: Engine) -> None:
        await limit(engine, QUEUE_SCOPE, Limit(active=1))
        session = await a_session(engine)
        await some_jobs(engine, 50)
        (taken,) = await claim(engine, session)

        async def finish() -> None:
            nonlocal taken
            await settle(engine, taken, complete(taken))
            (taken,) = await claim(engine, session)

        assert await hint_after(engine, ["ready"], finish) == "ready"


class TestRateLimits(EngineSuite):
    """No more jobs start per time than a rate allows, by the engine's clock."""

    async def test_a_burst_starts_at_once_and_then_one_job_per_token(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 10)
        await limit(engine, QUEUE_SCOPE, Limit(rate="2/1s"))
        session = await a_session(engine)
        assert len(await claim(engine, session)) == 2
        clock.advance_micros(SECOND // 2 - 1)
        assert await claim(engine, session) == []
        clock.advance_micros(1)
        assert len(await claim(engine, session)) == 1
        clock.advance("1h")
        assert len(await claim(engine, session)) == 2, "never more than a burst"

    async def test_the_answer_names_when_the_next_token_comes(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 3)
        await limit(engine, QUEUE_SCOPE, Limit(rate="1/10s"))
        session = await a_session(engine)
        assert (await claim_answer(engine, session)).next_at == clock.now() + 10 * SECOND
        clock.advance("4s")
        answer = await claim_answer(engine, session)
        assert (answer.jobs, answer.next_at) == ((), clock.now() + 6 * SECOND)
        await engine.close_session(session)
        assert await claim_answer(engine, session) == Claimed(clock.now(), ())

    async def test_no_moment_is_named_while_no_job_waits_for_a_token(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 1)
        await limit(engine, QUEUE_SCOPE, Limit(rate="1/10s"))
        session = await a_session(engine)
        assert (await claim_answer(engine, session)).next_at is None
        await some_jobs(engine, 1)
        assert (await claim_answer(engine, session)).next_at == clock.now() + 10 * SECOND

    async def test_no_moment_is_named_for_a_job_that_is_not_due(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 1)
        await accept_one(engine, a_job(delay=4 * SECOND))
        await limit(engine, QUEUE_SCOPE, Limit(rate="1/10s"))
        session = await a_session(engine)
        assert (await claim_answer(engine, session)).next_at is None
        clock.advance("4s")
        assert (await claim_answer(engine, session)).next_at == clock.now() + 6 * SECOND

    async def test_no_moment_is_named_for_jobs_of_a_paused_queue(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 2)
        await limit(engine, QUEUE_SCOPE, Limit(rate="1/10s"))
        session = await a_session(engine)
        assert (await claim_answer(engine, session)).next_at == clock.now() + 10 * SECOND
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True, draining=False))
        assert (await claim_answer(engine, session)).next_at is None
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=False, draining=False))
        assert (await claim_answer(engine, session)).next_at == clock.now() + 10 * SECOND

    async def test_settled_and_handed_back_jobs_return_no_token(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        (job,) = await some_jobs(engine, 1)
        await limit(engine, TYPE_SCOPE, Limit(rate="1/1s"))
        session = await a_session(engine)
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Release(fence_of(taken)))
        assert await claim(engine, session) == []
        clock.advance("1s")
        assert ids(await claim(engine, session)) == ids([job])

    async def test_a_retry_takes_a_token_of_its_own(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 1)
        await limit(engine, QUEUE_SCOPE, Limit(rate="1/1h"))
        session = await a_session(engine)
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Fail(fence_of(taken), Failure("error", "it broke")))
        clock.advance("59m")
        await engine.promote(10)
        assert await claim(engine, session) == []
        clock.advance("1m")
        assert len(await claim(engine, session)) == 1

    async def test_a_changed_rate_gives_at_most_one_new_burst(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 50)
        await limit(engine, QUEUE_SCOPE, Limit(rate="1/1h"))
        session = await a_session(engine)
        assert len(await claim(engine, session)) == 1
        await limit(engine, QUEUE_SCOPE, Limit(rate="10/1s"))
        assert await claim(engine, session) == [], "the bucket was empty and is"
        clock.advance("1s")
        assert len(await claim(engine, session)) == 10

    async def test_a_clock_that_was_set_back_delays_by_one_bucket_at_most(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 50)
        await limit(engine, QUEUE_SCOPE, Limit(rate="10/1s"))
        session = await a_session(engine, "1d")
        assert len(await claim(engine, session)) == 10
        clock.step_wall("1h", back=True)
        assert await claim(engine, session) == []
        clock.advance("1s")
        assert len(await claim(engine, session)) == 10

    async def test_a_rate_and_a_number_hold_together(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 9)
        await limit(engine, QUEUE_SCOPE, Limit(active=3, rate="5/1s"))
        session = await a_session(engine)
        running = await claim(engine, session)
        assert len(running) == 3
        for taken in running:
            await settle(engine, taken, complete(taken))
        assert len(await claim(engine, session)) == 2, "three of five tokens are taken"
        clock.advance("1s")
        assert len(await claim(engine, session)) == 1


class TestLimitSettings(EngineSuite):
    """The code declares a limit; what an operator sets wins until it is reset."""

    async def test_a_declared_limit_counts_until_it_is_declared_no_more(
        self, engine: Engine
    ) -> None:
        await some_jobs(engine, 4)
        session = await a_session(engine)
        await engine.declare_limits([(TYPE_SCOPE, Limit(active=1)), (QUEUE_SCOPE, Limit())])
        assert len(await claim(engine, session)) == 1
        assert [each.setting.scope for each in await engine.limits()] == [TYPE_SCOPE]
        await engine.declare_limits([(TYPE_SCOPE, Limit())])
        assert len(await claim(engine, session)) == 3

    async def test_each_part_that_an_operator_set_wins_until_it_is_reset(
        self, engine: Engine
    ) -> None:
        declared = Limit(active=2, rate="9/1m")
        await engine.declare_limits([(QUEUE_SCOPE, declared)])
        only_active = Override(Limit(active=7), frozenset({"active"}))
        changed = await engine.change_limit(QUEUE_SCOPE, only_active, BY)
        assert changed.in_force == Limit(active=7, rate="9/1m")
        await engine.declare_limits([(QUEUE_SCOPE, Limit(active=3, rate="8/1m"))])
        no_rate = Override(Limit(), frozenset({"rate"}))
        assert (await engine.change_limit(QUEUE_SCOPE, no_rate, BY)).in_force == Limit(active=7)
        reset = await engine.change_limit(QUEUE_SCOPE, Reset(), BY)
        assert reset.in_force == Limit(active=3, rate="8/1m")
        assert [each.setting for each in await engine.limits()] == [reset]

    async def test_every_change_by_an_operator_is_in_the_audit(self, engine: Engine) -> None:
        await engine.declare_limits([(TYPE_SCOPE, Limit(rate="1/1s"))])
        for _ in range(2):  # what is so already leaves no entry
            await limit(engine, TYPE_SCOPE, Limit(active=4))
        for _ in range(2):
            await engine.change_limit(TYPE_SCOPE, Reset(), BY)
        entries = await engine.audit(AuditFilter())
        target = f"{SERVICE}/{TYPE}"
        declared: JsonValue = {"active": None, "rate": "1/1s", "set_by_operator": []}
        changed: JsonValue = {"active": 4, "rate": None, "set_by_operator": ["active", "rate"]}
        assert [(each.change, each.by) for each in entries] == [
            (Change("type.limit", target, changed, declared), BY),
            (Change("type.limit", target, declared, changed), BY),
        ]

    async def test_operators_see_how_far_limits_are_used(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await some_jobs(engine, 4)
        await limit(engine, QUEUE_SCOPE, Limit(active=3, rate="1/10s", burst=2))
        await limit(engine, TYPE_SCOPE, Limit(active=9))
        session = await a_session(engine)
        (taken, _) = await claim(engine, session)
        await settle(engine, taken, Cancel(force=True))
        of_queue, of_type = await engine.limits()
        assert (of_queue.running, of_queue.tokens) == (2, 0)
        assert of_queue.next_at == clock.now() + 10 * SECOND
        assert (of_type.running, of_type.tokens, of_type.next_at) == (2, None, None)
