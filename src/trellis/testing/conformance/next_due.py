"""The next run time: until when the leader of maintenance can sleep."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Cancel, Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure
from trellis.engines.port import Engine
from trellis.testing.builders import a_job, a_keyed_job, fence_of
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


class TestNextDue(EngineSuite):
    """The earliest run time among the jobs that wait for theirs."""

    async def test_nothing_is_coming_when_no_job_waits_for_its_time(self, engine: Engine) -> None:
        assert await engine.next_due() is None
        await accept(engine, a_job(), *(a_keyed_job("user/7", IN_TURN) for _ in range(2)))
        await start(engine, await a_session(engine), a_job(type="refund"))
        assert await engine.next_due() is None

    async def test_the_earliest_of_all_kinds_of_jobs_comes_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        now = clock.now()
        for seconds, new in (
            (50, a_job(delay=50 * SECOND)),
            (40, a_job(run_at=now + 40 * SECOND, type="refund")),
            (30, a_keyed_job("user/7", IN_TURN, delay=30 * SECOND)),
            (20, a_job(delay=20 * SECOND, priority=-4)),
            (10, a_job(delay=10 * SECOND, service="depot", queue="other")),
        ):
            await accept_one(engine, new)
            assert await engine.next_due() == now + seconds * SECOND
        await accept_one(engine, a_job(delay=60 * SECOND))
        assert await engine.next_due() == now + 10 * SECOND

    async def test_a_job_is_coming_until_it_is_promoted(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        now = clock.now()
        await accept(engine, a_job(delay=10 * SECOND), a_job(delay=20 * SECOND))
        clock.advance("15s")
        assert await engine.next_due() == now + 10 * SECOND
        assert await engine.promote(100) == 1
        assert await engine.next_due() == now + 20 * SECOND

    async def test_a_retry_is_coming_and_a_cancelled_job_is_not(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        error = Failure("exception", "boom")
        failed = await settle(engine, taken, Fail(fence_of(taken), error, delay=7 * SECOND))
        assert await engine.next_due() == clock.now() + 7 * SECOND
        await settle(engine, failed, Cancel())
        assert await engine.next_due() is None
