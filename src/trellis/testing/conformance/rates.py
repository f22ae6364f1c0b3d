"""Rates: attempts that began and failed recently, how long they took, and what waits longest."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Fail, Snooze
from trellis.core.durations import SECOND, Micros
from trellis.core.job import Failure, JobRecord
from trellis.engines.operating import RATE_WINDOW, LaneRates, Rates
from trellis.engines.port import Engine
from trellis.testing.builders import QUEUE, SERVICE, TYPE, a_job, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    settle,
    start,
)
from trellis.testing.conformance.suite import EngineSuite


async def _rates(engine: Engine) -> Rates:
    await engine.catch_up()
    return await engine.rates()


async def _lane(engine: Engine) -> LaneRates:
    (lane,) = (await _rates(engine)).lanes
    return lane


class TestRates(EngineSuite):
    """Rates look back a few minutes, over a bounded number of events."""

    async def _done(self, engine: Engine, clock: ManualClock, took: Micros) -> JobRecord:
        taken = await start(engine, await a_session(engine), a_job())
        began = clock.now()
        clock.advance_micros(took)
        return await settle(engine, taken, complete(taken)._replace(started_at=began))

    async def test_an_empty_store_has_no_rates(self, engine: Engine, clock: ManualClock) -> None:
        assert await _rates(engine) == Rates(clock.now(), RATE_WINDOW, ())

    async def test_attempts_are_counted_as_they_begin_and_fail(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        for retryable in (True, False):
            taken = await start(engine, session, a_job())
            error = Failure("exception", '"error": [')
            word = Fail(fence_of(taken), error, retryable=retryable, delay=3600 * SECOND)
            await settle(engine, taken, word)
        other = await start(engine, session, a_job(type="refund", queue="slow"))
        await settle(engine, other, Snooze(fence_of(other), 3600 * SECOND))
        assert await _rates(engine) == Rates(
            clock.now(),
            RATE_WINDOW,
            (
                LaneRates(SERVICE, QUEUE, TYPE, started=2, failed=2),
                LaneRates(SERVICE, "slow", "refund", started=1),
            ),
        )

    async def test_durations_are_of_the_attempts_that_ended_jobs(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        for seconds in (1, 9, 2, 30):
            await self._done(engine, clock, seconds * SECOND)
        assert await _lane(engine) == LaneRates(
            SERVICE, QUEUE, TYPE, 4, 0, tuple(each * SECOND for each in (1, 2, 9, 30))
        )

    async def test_what_happened_before_the_window_does_not_count(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await self._done(engine, clock, SECOND)
        clock.advance_micros(RATE_WINDOW)
        assert (await _lane(engine))[3:] == (0, 0, (SECOND,), None)
        clock.advance_micros(1)
        assert (await _rates(engine)).lanes == ()

    async def test_the_job_that_waits_longest_is_seen(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept_one(engine, a_job(delay=5 * SECOND))
        assert (await _lane(engine)).due_since is None
        clock.advance("10s")  # due, and no worker has made it claimable
        assert (await _lane(engine)).due_since == clock.now() - 5 * SECOND
        await accept(engine, a_job(), a_job(priority=4))
        assert (await _lane(engine)).due_since == clock.now() - 5 * SECOND

    async def test_a_job_that_waits_for_its_key_waits_too(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await start(engine, await a_session(engine), a_keyed_job("user/7", IN_TURN))
        assert (await _lane(engine)).due_since is None
        await accept_one(engine, a_keyed_job("user/7", IN_TURN))
        since = clock.now()
        clock.advance("10s")
        assert (await _lane(engine)).due_since == since

    async def test_only_the_latest_events_are_read(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await self._done(engine, clock, SECOND)
        clock.advance("1m")
        since = clock.now()
        await accept(engine, *(a_job() for _ in range(20)))
        clock.advance("1s")
        await engine.catch_up()
        rates = await engine.rates(20)
        assert rates.window == clock.now() - since
        (lane,) = rates.lanes
        assert (lane.started, lane.failed, lane.due_since) == (0, 0, since)
