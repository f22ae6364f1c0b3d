"""Sessions and their leases: renewed, lapsed, reaped; judged by the engine's lease clock."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Cancel, Snooze
from trellis.core.durations import SECOND, micros
from trellis.core.job import SessionId
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Renewed, SessionLost, SessionRecord
from trellis.testing.builders import a_fence, a_job, a_worker, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    claim,
    claim_one,
    give_up_lost,
    head,
    reap_lapsed,
    renew,
    settle,
    start,
)
from trellis.testing.conformance.suite import EngineSuite, needs


async def _record(engine: Engine, session: SessionId) -> SessionRecord:
    return next(each for each in await engine.sessions() if each.id == session)


class TestRenewal(EngineSuite):
    """A renewal extends the lease and reports what changed for the worker."""

    async def test_a_session_is_opened_with_its_lease(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await engine.open_session(a_worker("ann"), micros("30s"))
        assert (session.lease, session.now) == (30 * SECOND, clock.now())
        record = await _record(engine, session.id)
        assert record.info == a_worker("ann")
        assert (record.opened_at, record.renewed_at) == (clock.now(), clock.now())
        assert (record.lease, record.lapsed, record.ended_at) == (30 * SECOND, False, None)
        assert record.held == 0

    async def test_sessions_are_listed_newest_first_with_what_they_hold(
        self, engine: Engine
    ) -> None:
        one, two = await a_session(engine), await a_session(engine)
        await accept(engine, a_job(), a_job(), a_job())
        await claim(engine, one, limit=2)
        await claim(engine, two, limit=1)
        assert [(each.id, each.held) for each in await engine.sessions()] == [(two, 1), (one, 2)]

    async def test_a_renewal_of_a_healthy_session_reports_nothing(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        clock.advance("10s")
        assert await renew(engine, session, taken) == Renewed(clock.now(), (), (), ())
        assert (await _record(engine, session)).renewed_at == clock.now()

    async def test_a_renewal_passes_on_an_asked_cancel(self, engine: Engine) -> None:
        session = await a_session(engine)
        one, two = await start(engine, session, a_job()), await start(engine, session, a_job())
        await settle(engine, two, Cancel())
        for _ in range(2):
            answer = await renew(engine, session, one, two)
            assert (answer.asked, answer.lost) == ((fence_of(two),), ())

    async def test_a_renewal_names_attempts_that_are_lost(self, engine: Engine) -> None:
        session, other = await a_session(engine), await a_session(engine)
        cancelled = await start(engine, session, a_job())
        retaken = await start(engine, session, a_job())
        kept = await start(engine, session, a_job())
        await settle(engine, cancelled, Cancel(force=True))
        await settle(engine, retaken, Snooze(fence_of(retaken), 0))
        await claim_one(engine, other)
        answer = await renew(engine, session, cancelled, retaken, kept)
        assert answer.lost == (fence_of(cancelled), fence_of(retaken))
        assert answer.unknown == ()

    async def test_an_attempt_of_another_session_is_lost_to_this_one(self, engine: Engine) -> None:
        session, other = await a_session(engine), await a_session(engine)
        taken = await start(engine, other, a_job())
        invented = a_fence(session)
        answer = await engine.renew(session, [fence_of(taken), invented])
        assert isinstance(answer, Renewed)
        assert answer.lost == (fence_of(taken), invented)

    async def test_a_renewal_names_claims_the_worker_does_not_know(self, engine: Engine) -> None:
        session = await a_session(engine)
        known = await start(engine, session, a_job())
        forgotten = await start(engine, session, a_job())
        await start(engine, await a_session(engine), a_job())
        assert (await renew(engine, session, known)).unknown == (forgotten,)

    async def test_a_renewal_extends_the_lease_by_its_whole_length(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        for _ in range(5):
            clock.advance("29s")
            await renew(engine, session)
        clock.advance_micros(30 * SECOND - 1)
        assert not await engine.reap(session)
        clock.advance_micros(1)
        assert await engine.reap(session)

    async def test_a_lapsed_session_that_was_not_reaped_can_be_renewed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_job())
        clock.advance("1d")
        assert (await _record(engine, session)).lapsed
        assert await renew(engine, session, taken) == Renewed(clock.now(), (), (), ())
        assert not (await _record(engine, session)).lapsed
        assert not await engine.reap(session)
        await settle(engine, taken, complete(taken))

    async def test_an_unknown_session_is_lost(self, engine: Engine, clock: ManualClock) -> None:
        assert await engine.renew(SessionId(12345), []) == SessionLost(clock.now())


class TestReap(EngineSuite):
    """Only a lapsed session is reaped; what it held is then due as lost."""

    async def test_a_live_session_is_not_reaped(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_job())
        clock.advance_micros(30 * SECOND - 1)
        assert (await engine.due("sessions", 10)).sessions == ()
        assert not await engine.reap(session)
        assert await renew(engine, session, taken)

    async def test_a_lapsed_session_is_due_and_then_reaped(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        one, two = await a_session(engine, "30s"), await a_session(engine, "60s")
        clock.advance("30s")
        assert (await engine.due("sessions", 10)).sessions == (one,)
        assert await engine.reap(one)
        assert (await engine.due("sessions", 10)).sessions == ()
        assert (await _record(engine, one)).ended_at == clock.now()
        assert (await _record(engine, two)).ended_at is None

    async def test_sessions_are_due_no_more_than_asked(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        opened = [await a_session(engine, "30s") for _ in range(3)]
        clock.advance("30s")
        assert (await engine.due("sessions", 2)).sessions == tuple(opened[:2])

    async def test_a_reaped_session_cannot_be_renewed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        clock.advance("30s")
        await reap_lapsed(engine)
        assert await engine.renew(session, [fence_of(taken)]) == SessionLost(clock.now())

    async def test_a_session_is_reaped_only_once_but_asking_again_is_fine(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        clock.advance("30s")
        assert await engine.reap(session)
        ended = (await _record(engine, session)).ended_at
        clock.advance("5s")
        assert await engine.reap(session)
        assert (await _record(engine, session)).ended_at == ended

    async def test_the_claims_of_a_reaped_session_are_due_as_lost(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session, alive = await a_session(engine, "30s"), await a_session(engine, "1h")
        lost = [await start(engine, session, a_job()) for _ in range(2)]
        await start(engine, alive, a_job())
        clock.advance("30s")
        assert (await engine.due("lost", 10)).jobs == ()
        await reap_lapsed(engine)
        due = await engine.due("lost", 10)
        assert due.now == clock.now()
        assert [job.record for job in due.jobs] == lost
        assert [job.record for job in (await engine.due("lost", 1)).jobs] == lost[:1]

    async def test_a_claim_whose_handler_has_stopped_is_lost_with_its_session(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        stopped = await start(engine, session, a_job())
        await engine.renew(session, [fence_of(stopped)], [fence_of(stopped)])
        later = await start(engine, session, a_job())
        await engine.close_session(session)
        due = await engine.due("lost", 10)
        assert [job.record for job in due.jobs] == [stopped, later]

    async def test_a_lost_attempt_is_given_up_once(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await start(engine, session, a_job())
        clock.advance("30s")
        await reap_lapsed(engine)
        (after,) = await give_up_lost(engine)
        assert (after.head.state, after.head.attempt) == (State.RETRY, 1)
        assert after.head.error is not None
        assert after.head.error.code == "lease_lost"
        assert (await engine.due("lost", 10)).jobs == ()

    async def test_a_reaped_session_claims_nothing_more(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await accept(engine, a_job())
        clock.advance("30s")
        await reap_lapsed(engine)
        assert await claim(engine, session) == []

    async def test_the_attempt_may_still_settle_until_it_is_given_up(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        clock.advance("30s")
        await reap_lapsed(engine)
        done = await settle(engine, taken, complete(taken))
        assert done.head.state is State.COMPLETED
        assert (await engine.due("lost", 10)).jobs == ()

    async def test_a_closed_session_leaves_its_claims_due_as_lost(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        await engine.close_session(session)
        assert [job.record for job in (await engine.due("lost", 10)).jobs] == [taken]
        assert await engine.renew(session, []) == SessionLost(clock.now())
        record = await _record(engine, session)
        assert (record.ended_at, record.lapsed) == (clock.now(), False)


class TestLeaseClock(EngineSuite):
    """Leases follow the clock that cannot be set; a reboot ends all of them."""

    @needs("boot_clock")
    async def test_a_wall_clock_set_forward_lapses_no_lease(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        clock.step_wall("365d")
        assert (await engine.due("sessions", 10)).sessions == ()
        assert not await engine.reap(session)
        assert (await head(engine, taken)).state is State.ACTIVE

    @needs("boot_clock")
    async def test_a_wall_clock_set_back_saves_no_lease(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        clock.advance("30s")
        clock.step_wall("1d", back=True)
        assert (await engine.due("sessions", 10)).sessions == (session,)
        assert await engine.reap(session)

    @needs("boot_clock")
    async def test_a_reboot_voids_every_lease(self, engine: Engine, clock: ManualClock) -> None:
        sessions = [await a_session(engine, "1h") for _ in range(2)]
        clock.reboot()
        assert (await engine.due("sessions", 10)).sessions == tuple(sessions)
        assert {each.lapsed for each in await engine.sessions()} == {True}
        assert await reap_lapsed(engine) == sessions

    async def test_a_session_opened_after_a_reboot_lives(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        clock.reboot()
        session = await a_session(engine)
        assert not await engine.reap(session)

    async def test_a_renewal_after_a_reboot_counts_on_the_new_clock(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        clock.reboot()
        await renew(engine, session)
        clock.advance_micros(30 * SECOND - 1)
        assert not await engine.reap(session)
        clock.advance_micros(1)
        assert await engine.reap(session)
