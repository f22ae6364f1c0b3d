"""The drain of a worker process, and what the process reports about itself."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.job import JobId, SessionId
from trellis.engines.port import Engine
from trellis.engines.values import Renewed, SessionRecord
from trellis.engines.worker_report import (
    NO_REPORT,
    BlockedLoop,
    LockWait,
    LostThread,
    WorkerReport,
)
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

_EVERYTHING = WorkerReport(
    running=7,
    running_by_type={"shop/invoice": 6, "shop/é": 1},
    full_types={"shop/invoice": 6},
    lost_threads=(LostThread(JobId("A"), "shop/invoice", 17),),
    blocked_loop=BlockedLoop(18, "shop.py:4 in wait", JobId("B")),
    lock_waits=(LockWait(JobId("C"), "ledger", 19), LockWait(JobId("D"), "'\"\\", 20)),
    stopping=True,
)


async def _record(engine: Engine, session: SessionId) -> SessionRecord:
    return next(each for each in await engine.sessions() if each.id == session)


class TestDrain(EngineSuite):
    """A worker reports what it does; an operator asks it to finish and exit."""

    async def test_a_session_shows_its_last_report_and_when_it_came(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session, other = await a_session(engine), await a_session(engine)
        assert (await _record(engine, session)).report == NO_REPORT
        taken = await start(engine, session, a_job())
        for report in (_EVERYTHING, WorkerReport(2)):
            clock.advance("1s")
            await engine.renew(session, [fence_of(taken)], (), report)
            record = await _record(engine, session)
            assert (record.report, record.renewed_at) == (report, clock.now())
        assert (await _record(engine, other)).report == NO_REPORT
        await engine.renew(session, [fence_of(taken)])
        assert (await _record(engine, session)).report == NO_REPORT

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
