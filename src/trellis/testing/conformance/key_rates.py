"""Rates of keys: how often jobs of one key start, by the engine's clock."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and counts in assertions

from __future__ import annotations

from dataclasses import replace

from trellis.core.commands import Cancel, Fail, Release
from trellis.core.durations import SECOND
from trellis.core.events import JsonValue
from trellis.core.job import Failure, JobRecord
from trellis.core.limits import Limit, LimitSetting, Override, Reset, Scope
from trellis.core.policy import DEFAULT_POLICY, KeyPolicy
from trellis.core.retry import Retry
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.port import Engine
from trellis.engines.values import QueueSettings
from trellis.testing.builders import (
    QUEUE,
    SERVICE,
    TYPE,
    a_demand,
    a_job,
    a_keyed_job,
    complete,
    fence_of,
)
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    holders,
    ids,
    settle,
)
from trellis.testing.conformance.suite import Another, EngineSuite, needs

SCOPE = Scope("key", SERVICE, TYPE)
#: Many at a time, two at once, then one every ten seconds.
RATED = KeyPolicy("user/{id}", 5, None, "wait", rate="1/10s", burst=2)
#: The same without a burst, and without a rate.
ONE_BY_ONE = replace(RATED, burst=1)
UNRATED = KeyPolicy("user/{id}", 5, None, "wait")
PAUSED = QueueSettings(SERVICE, QUEUE, paused=True)
BY = By("ada", "the other side is slow")


async def set_rate(engine: Engine, limit: Limit) -> LimitSetting:
    """Set the rate of each key of the default type as an operator."""
    return await engine.change_limit(SCOPE, Override(limit, frozenset({"rate"})), BY)


async def some_jobs(engine: Engine, count: int, key: KeyPolicy = ONE_BY_ONE) -> list[JobRecord]:
    """Create jobs of one key."""
    return await accept(engine, *(a_keyed_job("user/1", key) for _ in range(count)))


async def pass_time(engine: Engine, clock: ManualClock, seconds: int) -> None:
    """Let time pass as a fleet sees it: maintenance hands over what it may, every second."""
    for _ in range(seconds):
        clock.advance("1s")
        await engine.promote(100)


@needs("key_rates")
class TestKeyRates(EngineSuite):
    """No more jobs of a key start per time than its rate allows, however long they waited."""

    async def test_the_jobs_of_a_key_start_by_its_rate(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        jobs = await accept(engine, *(a_keyed_job("user/1", RATED) for _ in range(4)))
        other = await accept_one(engine, a_keyed_job("user/2", RATED))
        assert ids(await claim(engine, session)) == ids([*jobs[:2], other])
        assert await engine.next_due() == clock.now() + 10 * SECOND
        clock.advance_micros(10 * SECOND - 1)
        assert await engine.promote(10) == 0
        assert await claim(engine, session) == []
        clock.advance_micros(1)
        assert await engine.promote(10) == 1
        (third,) = await claim(engine, session)
        assert ids([third]) == ids(jobs[2:3])
        assert third.head.attempt == 1, "waiting for a token costs no attempt"
        clock.advance("10s")
        await engine.promote(10)
        assert ids(await claim(engine, session)) == ids(jobs[3:])
        assert await engine.next_due() == clock.now() + 10 * SECOND, (
            "another job might wait by then"
        )
        clock.advance("10s")
        assert (await engine.promote(10), await engine.next_due()) == (0, None)

    async def test_the_first_job_of_a_type_takes_a_token_when_a_claim_promotes_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        one = KeyPolicy("k", active=2, queued=None, when_full="wait", rate="1/10s")
        await accept_one(engine, a_keyed_job("user/1", one, delay=SECOND))
        clock.advance("1s")
        assert len(await claim(engine, session)) == 1
        await accept_one(engine, a_keyed_job("user/1", one))
        assert await claim(engine, session) == []

    async def test_an_end_frees_a_slot_but_gives_no_token(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        one = KeyPolicy("k", queued=None, when_full="wait", rate="1/10s")
        await accept(engine, *(a_keyed_job("user/1", one) for _ in range(3)))
        (first,) = await claim(engine, session)
        await settle(engine, first, complete(first))
        assert await claim(engine, session) == []
        clock.advance("10s")
        await engine.promote(10)
        (second,) = await claim(engine, session)
        clock.advance("10s")
        await engine.promote(10)
        assert await claim(engine, session) == [], "the token is there, and the slot is not"
        await settle(engine, second, complete(second))
        assert len(await claim(engine, session)) == 1

    async def test_a_retry_waits_for_a_token_of_its_key(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        one = KeyPolicy("k", queued=None, when_full="wait", rate="1/1h")
        await accept_one(engine, a_keyed_job("user/1", one))
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Fail(fence_of(taken), Failure("error", "it broke")))
        clock.advance("59m")
        await engine.promote(10)
        assert await claim(engine, session) == []
        clock.advance("1m")
        await engine.promote(10)
        assert len(await claim(engine, session)) == 1

    async def test_a_bucket_that_is_full_is_forgotten(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        await accept(engine, *(a_keyed_job("user/1", RATED) for _ in range(2)))
        assert len(await claim(engine, session)) == 2
        clock.advance("1m")
        await engine.prune(10)
        await accept(engine, *(a_keyed_job("user/1", RATED) for _ in range(3)))
        assert len(await claim(engine, session)) == 2

    async def test_jobs_of_a_paused_queue_do_not_start_together_when_it_is_resumed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        await engine.set_queue(PAUSED)
        jobs = await some_jobs(engine, 6)
        for _ in range(6):
            await pass_time(engine, clock, 10)
            assert await claim(engine, session) == []
        await engine.set_queue(PAUSED._replace(paused=False))
        for job in jobs[:4]:
            assert ids(await claim(engine, session)) == ids([job])
            assert await claim(engine, session) == []
            await pass_time(engine, clock, 9)
            assert await claim(engine, session) == []
            await pass_time(engine, clock, 1)

    async def test_jobs_that_found_no_worker_do_not_start_together_when_one_comes(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        for _ in range(6):
            await some_jobs(engine, 1, RATED)
            await pass_time(engine, clock, 10)
        session = await a_session(engine, "1d")
        assert len(await claim(engine, session)) == 2, "a burst"
        await engine.promote(100)
        assert await claim(engine, session) == []
        await pass_time(engine, clock, 10)
        assert len(await claim(engine, session)) == 1
        await pass_time(engine, clock, 20)
        assert len(await claim(engine, session)) == 2

    async def test_jobs_that_are_claimed_one_by_one_get_the_whole_burst(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        await some_jobs(engine, 4, RATED)
        for _ in range(2):
            assert len(await claim(engine, session, limit=1)) == 1
            await engine.promote(100)
        assert await claim(engine, session) == []
        await pass_time(engine, clock, 10)
        assert len(await claim(engine, session)) == 1

    async def test_a_job_that_is_created_while_another_waits_to_start_follows_by_the_rate(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        (first,) = await some_jobs(engine, 1)
        (second,) = await some_jobs(engine, 1)
        await pass_time(engine, clock, 60)
        assert ids(await claim(engine, session)) == ids([first])
        await pass_time(engine, clock, 10)
        assert ids(await claim(engine, session)) == ids([second]), "the first one still runs"

    async def test_a_job_that_was_handed_back_takes_another_token(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        await some_jobs(engine, 1)
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Release(fence_of(taken)))
        await pass_time(engine, clock, 9)
        assert await claim(engine, session) == []
        await pass_time(engine, clock, 1)
        assert len(await claim(engine, session)) == 1

    async def test_a_cancelled_job_leaves_its_token_to_the_next(self, engine: Engine) -> None:
        session = await a_session(engine, "1d")
        first, second = await some_jobs(engine, 2)
        await settle(engine, first, Cancel())
        assert ids(await claim(engine, session)) == ids([second])

    async def test_a_retry_that_keeps_its_slot_takes_a_token_and_lets_no_other_pass(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        strict = KeyPolicy("user/{id}", 1, None, "wait", "job", "1/10s")
        policy = replace(DEFAULT_POLICY, key=strict, retry=Retry.fixed("1s"))
        first = await accept_one(engine, a_keyed_job("user/1", strict, policy=policy))
        await accept_one(engine, a_keyed_job("user/1", strict, policy=policy, priority=4))
        (taken,) = await claim(engine, session)
        assert ids([taken]) == ids([first])
        error = Failure("error", "it broke")
        await settle(engine, taken, Fail(fence_of(taken), error, delay=SECOND))
        for _ in range(9):
            await pass_time(engine, clock, 1)
            assert await claim(engine, session) == []
        assert await holders(engine, "user/1") == ids([first])
        await pass_time(engine, clock, 1)
        assert ids(await claim(engine, session)) == ids([first])

    async def test_a_clock_that_was_set_back_delays_by_one_bucket_at_most(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30d")
        await some_jobs(engine, 4, RATED)
        assert len(await claim(engine, session)) == 2
        clock.step_wall("1h", back=True)
        await engine.promote(100)
        assert await claim(engine, session) == []
        await pass_time(engine, clock, 20)
        assert len(await claim(engine, session)) == 2

    async def test_jobs_that_a_claim_makes_due_start_by_the_rate(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        await accept(engine, *(a_keyed_job("user/1", RATED, delay=SECOND) for _ in range(3)))
        clock.advance("1s")
        assert len(await claim(engine, session, limit=1)) == 1
        assert len(await claim(engine, session)) == 1
        await engine.promote(100)
        assert await claim(engine, session) == []
        await pass_time(engine, clock, 10)
        assert len(await claim(engine, session)) == 1


@needs("key_rates")
class TestKeyRateSettings(EngineSuite):
    """Operators set the rate of each key of a type, and it counts at once."""

    async def test_the_first_job_declares_the_rate_of_its_keys(self, engine: Engine) -> None:
        await some_jobs(engine, 1)
        await accept_one(engine, a_keyed_job("user/2", UNRATED))
        (status,) = await engine.limits()
        assert status == (LimitSetting(SCOPE, Limit(rate="1/10s", burst=1)), 0, None, None)

    async def test_a_rate_counts_for_jobs_that_could_have_started_without_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        await engine.set_queue(PAUSED)
        jobs = await some_jobs(engine, 7, UNRATED)
        other = await accept_one(engine, a_job(type="refund"))
        assert await holders(engine, "user/1") == ids(jobs[:5])
        await set_rate(engine, Limit(rate="1/10s", burst=2))
        await engine.set_queue(PAUSED._replace(paused=False))
        demand = a_demand(TYPE, "refund")
        assert ids(await claim(engine, session, demand)) == ids([*jobs[:2], other])
        assert await holders(engine, "user/1") == ids(jobs[:2])
        await pass_time(engine, clock, 9)
        assert await claim(engine, session, demand) == []
        await pass_time(engine, clock, 1)
        assert ids(await claim(engine, session, demand)) == ids(jobs[2:3])

    async def test_a_lowered_rate_counts_for_jobs_that_have_a_slot(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        jobs = await some_jobs(engine, 5, replace(RATED, rate="5/1s", burst=5))
        assert await holders(engine, "user/1") == ids(jobs)
        await set_rate(engine, Limit(rate="1/1h"))
        assert ids(await claim(engine, session)) == ids(jobs[:1])
        clock.advance("59m")
        await engine.promote(100)
        assert await claim(engine, session) == []
        clock.advance("1m")
        await engine.promote(100)
        assert ids(await claim(engine, session)) == ids(jobs[1:2])

    async def test_a_raised_rate_reaches_jobs_that_wait(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        await some_jobs(engine, 5, replace(ONE_BY_ONE, rate="1/1h"))
        assert len(await claim(engine, session)) == 1
        await set_rate(engine, Limit(rate="4/1s"))
        await engine.promote(100)
        assert await claim(engine, session) == [], "the bucket was empty and is"
        clock.advance("1s")
        await engine.promote(100)
        assert len(await claim(engine, session)) == 4

    async def test_a_rate_that_is_lifted_leaves_the_slots(self, engine: Engine) -> None:
        session = await a_session(engine, "1d")
        jobs = await some_jobs(engine, 7)
        assert len(await claim(engine, session)) == 1
        await set_rate(engine, Limit())
        await engine.promote(100)
        assert ids(await claim(engine, session)) == ids(jobs[1:5]), "five at a time"

    async def test_a_changed_declaration_reaches_jobs_that_wait(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1d")
        jobs = await some_jobs(engine, 3, replace(ONE_BY_ONE, rate="1/1h"))
        assert len(await claim(engine, session)) == 1
        await engine.declare_limits([(SCOPE, Limit(rate="1/1s"))])
        await engine.promote(100)
        await pass_time(engine, clock, 1)
        assert ids(await claim(engine, session)) == ids(jobs[1:2])
        await engine.declare_limits([(SCOPE, Limit())])
        await engine.promote(100)
        assert ids(await claim(engine, session)) == ids(jobs[2:])

    async def test_what_an_operator_set_is_audited_and_reset(self, engine: Engine) -> None:
        await engine.declare_limits([(SCOPE, Limit(rate="1/10s"))])
        assert (await set_rate(engine, Limit(rate="9/1s"))).in_force == Limit(rate="9/1s")
        assert (await engine.change_limit(SCOPE, Reset(), BY)).in_force == Limit(rate="1/10s")
        target = f"{SERVICE}/{TYPE}"
        slow: JsonValue = {"rate": "1/10s", "set_by_operator": []}
        fast: JsonValue = {"rate": "9/1s", "set_by_operator": ["rate"]}
        assert [(each.change, each.by) for each in await engine.audit(AuditFilter())] == [
            (Change("key.limit", target, fast, slow), BY),
            (Change("key.limit", target, slow, fast), BY),
        ]

    @needs("processes")
    async def test_engine_objects_share_the_rate(
        self, engine: Engine, another: Another, clock: ManualClock
    ) -> None:
        other = await another()
        session, elsewhere = await a_session(engine, "1d"), await a_session(other, "1d")
        jobs = await some_jobs(engine, 4, replace(UNRATED, active=4))
        assert ids(await claim(other, elsewhere, limit=1)) == ids(jobs[:1])
        await set_rate(engine, Limit(rate="1/10s"))
        assert ids(await claim(other, elsewhere)) == ids(jobs[1:2])
        assert await claim(engine, session) == []
        await pass_time(engine, clock, 10)
        assert ids(await claim(engine, session)) == ids(jobs[2:3])
        assert await claim(other, elsewhere) == []
