"""Claim: which jobs, in which order, how many, and exactly what is stored."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio

from trellis.core.commands import Claim, Fail, Release
from trellis.core.durations import SECOND
from trellis.core.job import Failure
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.testing.builders import QUEUE, a_demand, a_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    claim_one,
    head,
    ids,
    journal,
    kinds,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite, needs


class TestClaim(EngineSuite):
    """A claim takes due jobs of the demanded types, and stores what the lifecycle decides."""

    async def test_what_a_claim_stores_is_what_the_lifecycle_decides(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        jobs = [a_job(), a_job(priority=3), a_job(tags=(("a", "b"),)), a_job(deadline_in=SECOND)]
        before = {record.definition.id: record for record in await accept(engine, *jobs)}
        clock.advance("0.5s")
        for taken in await claim(engine, await a_session(engine)):
            waiting = before.pop(taken.definition.id)
            expected = decide(waiting, Claim(fence_of(taken)), clock.now())
            assert isinstance(expected, Transition)
            assert taken == (expected.definition, expected.head)
            assert await the(engine, taken.definition.id) == taken
            assert (await journal(engine, taken))[-1] == expected.event
        assert before == {}

    async def test_claiming_a_retry_stores_what_the_lifecycle_decides(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(policy=Policy(retry=Retry.fixed("10s"))))
        error = Failure("exception", "boom", "Traceback")
        waiting = await settle(engine, taken, Fail(fence_of(taken), error))
        clock.advance("10s")
        again = await claim_one(engine, session)
        expected = decide(waiting, Claim(fence_of(again)), clock.now())
        assert isinstance(expected, Transition)
        assert again.head == expected.head == await head(engine, again)
        assert (again.head.attempt, again.head.claims, again.head.error) == (2, 2, error)

    async def test_every_claim_has_a_fence_of_its_own(self, engine: Engine) -> None:
        await accept(engine, *(a_job() for _ in range(20)))
        one, two = await a_session(engine), await a_session(engine)
        taken = [*await claim(engine, one, limit=10), *await claim(engine, two, limit=10)]
        fences = [fence_of(record) for record in taken]
        assert len(set(fences)) == len({fence.attempt_id for fence in fences}) == 20
        assert [fence.session for fence in fences] == [one] * 10 + [two] * 10

    async def test_a_claim_returns_the_time(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine)
        clock.advance("7s")
        assert (await engine.claim(session, [a_demand()], 1)).now == clock.now()

    async def test_a_claimed_job_is_not_claimed_again(self, engine: Engine) -> None:
        await accept(engine, a_job(), a_job())
        one, two = await a_session(engine), await a_session(engine)
        assert len(await claim(engine, one)) == 2
        assert await claim(engine, two) == []
        assert await claim(engine, one) == []

    async def test_concurrent_claims_never_share_a_job(self, engine: Engine) -> None:
        created = await accept(engine, *(a_job() for _ in range(40)))
        sessions = [await a_session(engine) for _ in range(8)]
        taken = await asyncio.gather(*(claim(engine, each, limit=7) for each in sessions))
        claimed = [job_id for records in taken for job_id in ids(records)]
        assert sorted(claimed) == sorted(ids(created))

    async def test_a_handed_back_job_keeps_its_place(self, engine: Engine) -> None:
        session = await a_session(engine)
        first, second = await accept(engine, a_job(), a_job())
        taken = await claim_one(engine, session)
        await settle(engine, taken, Release(fence_of(taken)))
        assert ids(await claim(engine, session)) == ids([first, second])
        assert await kinds(engine, first) == ["created", "started", "retry", "started"]


class TestClaimOrder(EngineSuite):
    """By priority, due time and creation, across all demanded types and queues."""

    async def test_jobs_come_in_creation_order(self, engine: Engine) -> None:
        created = await accept(engine, *(a_job() for _ in range(5)))
        assert ids(await claim(engine, await a_session(engine))) == ids(created)

    async def test_a_higher_priority_comes_first(self, engine: Engine) -> None:
        jobs = {priority: a_job(priority=priority) for priority in (0, -4, 4, 1, -1)}
        await accept(engine, *jobs.values())
        taken = ids(await claim(engine, await a_session(engine)))
        assert taken == [jobs[priority].id for priority in (4, 1, 0, -1, -4)]

    async def test_one_order_runs_across_types_and_queues(self, engine: Engine) -> None:
        jobs = [
            a_job(type="a", queue="left"),
            a_job(type="b", queue="left", priority=1),
            a_job(type="c", queue="right"),
            a_job(type="a", queue="left", priority=1),
            a_job(type="c", queue="right", priority=2),
            a_job(type="d", queue="far", service="depot"),
        ]
        await accept(engine, *jobs)
        demands = [
            a_demand("a", "b", queue="left"),
            a_demand("c", queue="right"),
            a_demand("d", queue="far", service="depot"),
        ]
        taken = ids(await claim(engine, await a_session(engine), *demands))
        assert taken == [jobs[place].id for place in (4, 1, 3, 0, 2, 5)]

    @needs("ordered")
    async def test_claims_one_by_one_come_in_the_same_order(self, engine: Engine) -> None:
        jobs = [a_job(priority=priority) for priority in (0, 2, 0, 2, 1)]
        await accept(engine, *jobs)
        session = await a_session(engine)
        taken = [(await claim_one(engine, session)).definition.id for _ in jobs]
        assert taken == [jobs[place].id for place in (1, 3, 4, 0, 2)]

    async def test_a_retry_comes_after_newer_jobs_that_were_due_before_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        policy = Policy(retry=Retry.fixed("1s"))
        taken = await start(engine, session, a_job(policy=policy))
        newer = await accept(engine, a_job(), a_job(priority=-1))
        await settle(engine, taken, Fail(fence_of(taken), Failure("exception", "x")))
        clock.advance("2s")
        newest = await accept_one(engine, a_job())
        order = ids(await claim(engine, session))
        assert order == ids([newer[0], taken, newest, newer[1]])

    async def test_jobs_that_fail_and_retry_quickly_do_not_starve_newer_ones(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        policy = Policy(retry=Retry.fixed("1ms", attempts=50))
        await accept(engine, *(a_job(policy=policy) for _ in range(3)))
        newer = await accept(engine, *(a_job() for _ in range(4)))
        waiting = set(ids(newer))
        for _ in range(4):  # claims of two; the three old jobs are always due again
            for record in await claim(engine, session, limit=2):
                waiting.discard(record.definition.id)
                await settle(engine, record, Fail(fence_of(record), Failure("exception", "x")))
            clock.advance("10ms")
        assert not waiting

    @needs("ordered")
    async def test_jobs_come_by_their_due_time_whatever_the_size_of_a_claim(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        jobs = [a_job(delay=seconds * SECOND) for seconds in (7, 3, 5, 1, 3)]
        await accept(engine, *jobs)
        clock.advance("10s")
        last = await accept_one(engine, a_job())
        session = await a_session(engine)
        taken = [(await claim_one(engine, session)).definition.id for _ in range(2)]
        taken += ids(await claim(engine, session))
        assert taken == [*(jobs[place].id for place in (3, 1, 4, 2, 0)), last.definition.id]

    async def test_a_job_that_was_handed_back_comes_before_newer_ones_of_other_types(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(type="b"))
        newer = await accept_one(engine, a_job(type="a"))
        clock.advance("1h")
        await settle(engine, taken, Release(fence_of(taken)))
        both = a_demand("a", "b")
        assert ids(await claim(engine, session, both)) == ids([taken, newer])


class TestClaimLimits(EngineSuite):
    """A claim respects both limits, in total and per demand, and takes only demanded types."""

    async def test_no_more_than_the_limit_is_taken(self, engine: Engine) -> None:
        created = await accept(engine, *(a_job() for _ in range(5)))
        session = await a_session(engine)
        assert ids(await claim(engine, session, limit=2)) == ids(created[:2])
        assert ids(await claim(engine, session, limit=2)) == ids(created[2:4])
        assert ids(await claim(engine, session, limit=2)) == ids(created[4:])

    async def test_no_more_than_a_demand_wants_is_taken(self, engine: Engine) -> None:
        jobs = [a_job(type=name, queue=name) for name in ("a", "a", "a", "b", "b", "a", "b")]
        await accept(engine, *jobs)
        demands = [a_demand("a", queue="a", limit=2), a_demand("b", queue="b", limit=1)]
        taken = ids(await claim(engine, await a_session(engine), *demands))
        assert taken == [jobs[place].id for place in (0, 1, 3)]

    @needs("ordered")
    async def test_the_limit_holds_over_all_demands_together(self, engine: Engine) -> None:
        jobs = [a_job(type=name, queue=name) for name in ("b", "a", "b", "a")]
        await accept(engine, *jobs)
        demands = [a_demand("a", queue="a"), a_demand("b", queue="b")]
        taken = ids(await claim(engine, await a_session(engine), *demands, limit=3))
        assert taken == [new.id for new in jobs[:3]]

    @needs("ordered")
    async def test_the_types_of_one_demand_share_its_limit(self, engine: Engine) -> None:
        jobs = [a_job(type=name) for name in ("a", "b", "a", "b")]
        await accept(engine, *jobs)
        taken = ids(await claim(engine, await a_session(engine), a_demand("a", "b", limit=3)))
        assert taken == [new.id for new in jobs[:3]]

    async def test_what_was_not_taken_can_still_be_claimed(self, engine: Engine) -> None:
        created = await accept(engine, *(a_job(priority=1) for _ in range(3)))
        session = await a_session(engine)
        taken = await claim(engine, session, a_demand(limit=1))
        assert ids([*taken, *await claim(engine, session)]) == ids(created)

    async def test_a_limit_of_nothing_takes_nothing(self, engine: Engine) -> None:
        await accept(engine, a_job())
        session = await a_session(engine)
        assert await claim(engine, session, limit=0) == []
        assert await claim(engine, session, a_demand(limit=0)) == []
        assert (await engine.claim(session, [], 5)).jobs == ()
        assert len(await claim(engine, session)) == 1

    async def test_types_not_demanded_are_skipped(self, engine: Engine) -> None:
        await accept(engine, *(a_job(type="other", priority=4) for _ in range(10)))
        wanted = await accept_one(engine, a_job())
        assert ids(await claim(engine, await a_session(engine))) == ids([wanted])

    @needs("split_types")
    async def test_a_type_is_demanded_from_its_queue_and_service(self, engine: Engine) -> None:
        await accept(engine, a_job())
        session = await a_session(engine)
        assert await claim(engine, session, a_demand(queue="elsewhere")) == []
        assert await claim(engine, session, a_demand(service="depot")) == []
        assert len(await claim(engine, session, a_demand(queue=QUEUE))) == 1

    async def test_an_unknown_or_ended_session_claims_nothing(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        session = await a_session(engine)
        await engine.close_session(session)
        assert await claim(engine, session) == []
        assert await head(engine, record) == record.head


class TestClaimTimes(EngineSuite):
    """No job starts before its run time or after its deadline."""

    async def test_a_job_is_not_claimed_before_its_time(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job(delay=10 * SECOND))
        session = await a_session(engine)
        clock.advance_micros(10 * SECOND - 1)
        await engine.promote(100)
        assert await claim(engine, session) == []
        clock.advance_micros(1)
        await engine.promote(100)
        assert ids(await claim(engine, session)) == ids([record])

    async def test_a_due_job_is_claimed_before_anybody_promotes_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job(delay=SECOND))
        clock.advance("1s")
        assert ids(await claim(engine, await a_session(engine))) == ids([record])

    async def test_due_jobs_of_other_types_hide_none_of_the_demanded_type(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        others = [a_job(type="refund", delay=SECOND) for _ in range(3)]
        wanted = a_job(delay=SECOND)
        await accept(engine, *others, wanted)
        clock.advance("2s")
        taken = await claim(engine, await a_session(engine), a_demand(), limit=1)
        assert ids(taken) == [wanted.id]

    async def test_a_job_found_due_stays_due_when_the_wall_clock_is_set_back(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        waiting = await accept_one(engine, a_job())
        clock.step_wall("1h", back=True)
        assert ids(await claim(engine, await a_session(engine))) == ids([waiting])

    async def test_promotion_moves_no_version(self, engine: Engine, clock: ManualClock) -> None:
        records = await accept(engine, a_job(delay=SECOND), a_job(delay=SECOND), a_job(delay=99))
        clock.advance("1s")
        assert await engine.promote(1) == 1
        assert await engine.promote(100) == 2
        assert await engine.promote(100) == 0
        for record in records:
            assert await head(engine, record) == record.head
            assert await kinds(engine, record) == ["created"]

    async def test_a_job_past_its_deadline_is_not_claimed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job(deadline_in=10 * SECOND))
        fresh = await accept_one(engine, a_job(deadline_in=20 * SECOND))
        clock.advance("10s")
        assert ids(await claim(engine, await a_session(engine))) == ids([fresh])
        assert (await head(engine, record)).state is State.PENDING

    async def test_a_job_is_claimed_until_just_before_its_deadline(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept_one(engine, a_job(deadline_in=10 * SECOND))
        clock.advance_micros(10 * SECOND - 1)
        assert len(await claim(engine, await a_session(engine))) == 1

    async def test_an_expired_job_hides_no_job_behind_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept(engine, *(a_job(deadline_in=SECOND, priority=1) for _ in range(5)))
        good = await accept_one(engine, a_job())
        clock.advance("1s")
        session = await a_session(engine)
        assert ids(await claim(engine, session, a_demand(limit=1), limit=1)) == ids([good])

    async def test_a_backoff_is_waited_out(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(policy=Policy(retry=Retry.fixed("30s"))))
        await settle(engine, taken, Fail(fence_of(taken), Failure("exception", "x")))
        clock.advance_micros(30 * SECOND - 1)
        assert await claim(engine, session) == []
        clock.advance_micros(1)
        assert ids(await claim(engine, session)) == ids([taken])
