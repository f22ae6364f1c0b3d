"""The drain of a worker process, and how busy the process is."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.job import SessionId
from trellis.engines.port import Engine
from trellis.engines.values import Renewed, SessionRecord
from trellis.testing.builders import a_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept_one,
    claim,
    ids,
    reap_lapsed,
    start,
)
from trellis.testing.conformance.suite import EngineSuite


async def _record(engine: Engine, session: SessionId) -> SessionRecord:
    return next(each for each in await engine.sessions() if each.id == session)


class TestDrain(EngineSuite):
    """A worker reports how many handlers run; an operator asks it to finish and exit."""

    async def test_a_session_shows_how_busy_it_reported_to_be(self, engine: Engine) -> None:
        session, other = await a_session(engine), await a_session(engine)
        assert (await _record(engine, session)).busy == 0
        taken = await start(engine, session, a_job())
        for busy in (7, 2):
            await engine.renew(session, [fence_of(taken)], (), busy)
            assert (await _record(engine, session)).busy == busy
        assert (await _record(engine, other)).busy == 0
        await engine.renew(session, [fence_of(taken)])
        assert (await _record(engine, session)).busy == 0

    async def test_every_renewal_reports_that_a_worker_was_asked_to_drain(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session, other = await a_session(engine), await a_session(engine)
        assert await engine.ask_drain(session)
        assert await engine.ask_drain(session)
        for _ in range(2):
            assert await engine.renew(session, []) == Renewed(clock.now(), (), (), (), True)
        assert await engine.renew(other, []) == Renewed(clock.now(), (), (), (), False)
        assert (await _record(engine, session)).draining
        assert not (await _record(engine, other)).draining

    async def test_a_worker_that_was_asked_to_go_decides_itself_what_it_still_takes(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        await engine.ask_drain(session)
        record = await accept_one(engine, a_job())
        assert ids(await claim(engine, session)) == ids([record])

    async def test_only_a_session_that_is_not_over_can_be_asked(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        closed, lapsed = await a_session(engine), await a_session(engine, "30s")
        await engine.close_session(closed)
        clock.advance("30s")
        assert await engine.ask_drain(lapsed)  # it has not been reaped: it may renew again
        await reap_lapsed(engine)
        for session in (closed, lapsed, SessionId(12345)):
            assert not await engine.ask_drain(session)
        assert not (await _record(engine, closed)).draining
