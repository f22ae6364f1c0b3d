"""An attempt ended from outside keeps its locks until its handler is known to have stopped."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Cancel, Complete, Fail, Release
from trellis.core.durations import SECOND
from trellis.core.job import Fence
from trellis.engines.port import Engine
from trellis.engines.values import Committed, LockHolder
from trellis.testing.builders import a_job, a_worker, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    claim_one,
    decided,
    ids,
    reap_lapsed,
    renew,
    settle,
    start,
)
from trellis.testing.conformance.locks import names, take
from trellis.testing.conformance.slot_lingering import FROM_OUTSIDE, LATE
from trellis.testing.conformance.suite import EngineSuite, needs


async def an_ended_holder(engine: Engine, lease: str = "30s") -> Fence:
    """Return an attempt that held the lock "table" when it was ended from outside."""
    taken = await start(engine, await a_session(engine, lease), a_job())
    assert await take(engine, "table", taken) is None
    await settle(engine, taken, Cancel(force=True))
    return fence_of(taken)


class TestLockLingering(EngineSuite):
    """A lock lingers while its handler may still run, and never longer than one lease."""

    async def test_the_lock_stays_held_until_the_worker_reports_that_the_handler_stopped(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session, other = await a_session(engine, "1h"), await a_session(engine, "1h")
        for name, word in FROM_OUTSIDE.items():
            taken = await start(engine, session, a_job(deadline_in=SECOND))
            await take(engine, name, taken)
            clock.advance("1s")
            await settle(engine, taken, word(taken))
            holder = await engine.take_lock(name, other)
            assert holder is not None, name
            assert (holder.session, holder.token) == fence_of(taken)
            await renew(engine, session, stopped=(fence_of(taken),))
            assert await engine.take_lock(name, other) is None

    async def test_attempts_ended_in_one_batch_keep_their_locks_too(self, engine: Engine) -> None:
        session = await a_session(engine)
        attempts = [await start(engine, session, a_job()) for _ in range(4)]
        for name, taken in zip("abcd", attempts, strict=True):
            await take(engine, name, taken)
        one, two, three, four = attempts
        batch = [
            await decided(engine, one, Cancel(force=True)),
            await decided(engine, two, Complete(fence_of(two))),
            await decided(engine, three, Fail(fence_of(three), LATE, False, stopped=False)),
            await decided(engine, four, Fail(fence_of(four), LATE, False)),
        ]
        assert await engine.commit(batch) == [Committed()] * 4
        assert await names(engine) == ["a", "c"]

    async def test_it_is_held_in_the_name_of_the_job_that_was_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session, since = (await engine.open_session(a_worker("ann"), 30 * SECOND)).id, clock.now()
        taken = await start(engine, session, a_job())
        await take(engine, "table", taken)
        clock.advance("5s")
        await settle(engine, taken, Cancel(force=True))
        ann = LockHolder("table", *fence_of(taken), "ann", taken.definition.id, since)
        assert await engine.locks() == [ann]
        assert await engine.remove(ids([taken])) == ["removed"]
        assert await engine.locks() == [ann._replace(job_id=None)]
        await renew(engine, session)
        assert await engine.locks() == [ann._replace(job_id=None)]

    async def test_only_its_own_worker_can_say_that_the_handler_stopped(
        self, engine: Engine
    ) -> None:
        fence = await an_ended_holder(engine)
        await renew(engine, fence.session)
        await renew(engine, await a_session(engine), stopped=(fence,))
        await renew(engine, fence.session, stopped=(Fence(fence.session, fence.token + 1),))
        assert await names(engine) == ["table"]

    async def test_saying_that_a_running_attempt_stopped_frees_nothing(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        await take(engine, "table", taken)
        await renew(engine, session, taken, stopped=(fence_of(taken),))
        assert await names(engine) == ["table"]

    async def test_the_handler_itself_may_give_it_back(self, engine: Engine) -> None:
        fence = await an_ended_holder(engine)
        assert await engine.free_lock("table", *fence)
        assert await engine.take_lock("table", await a_session(engine)) is None

    async def test_it_is_of_no_use_to_the_attempt_that_is_over(self, engine: Engine) -> None:
        fence = await an_ended_holder(engine)
        for name in ("table", "another"):
            holder = await engine.take_lock(name, *fence)
            assert holder is not None
            assert (holder.session, holder.token) == fence
        assert await names(engine) == ["table"]

    async def test_the_next_attempt_waits_for_its_own_old_handler(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        await take(engine, "table", taken)
        await settle(engine, taken, Release(fence_of(taken), stopped=False))
        again = await claim_one(engine, session)
        holder = await take(engine, "table", again)
        assert holder is not None
        assert (holder.token, holder.job_id) == (fence_of(taken).token, again.definition.id)
        await renew(engine, session, again, stopped=(fence_of(taken),))
        assert await take(engine, "table", again) is None

    async def test_it_ends_after_one_lease_however_often_its_session_was_renewed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        fence = await an_ended_holder(engine, "30s")
        clock.advance("20s")
        await renew(engine, fence.session)
        clock.advance_micros(10 * SECOND - 1)
        assert await names(engine) == ["table"]
        clock.advance_micros(1)
        assert await names(engine) == []
        assert await engine.take_lock("table", fence.session) is None

    async def test_what_has_lingered_is_forgotten_by_the_next_upkeep(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        fence = await an_ended_holder(engine, "30s")
        assert await engine.promote(10) == 0
        clock.advance("30s")
        assert await engine.promote(10) == 1
        assert not await engine.free_lock("table", *fence)
        assert await engine.promote(10) == 0

    @needs("boot_clock")
    async def test_a_wall_clock_that_is_set_ends_no_lingering_lock(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await an_ended_holder(engine)
        clock.step_wall("1d")
        await engine.promote(10)
        assert await names(engine) == ["table"]

    async def test_reaping_the_session_ends_its_lingering_locks(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_job())
        await take(engine, "table", taken)
        clock.advance("29s")
        await settle(engine, taken, Cancel(force=True))
        clock.advance("1s")
        assert await names(engine) == ["table"], (
            "it lingers until the session is reaped, as a slot does"
        )
        await reap_lapsed(engine)
        assert await names(engine) == []

    async def test_a_lock_lingers_on_after_its_session_was_closed_but_not_for_ever(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        fence = await an_ended_holder(engine, "30s")
        await engine.take_lock("ours", fence.session)
        await engine.close_session(fence.session)
        assert await names(engine) == ["table"]
        clock.advance("30s")
        assert await names(engine) == []

    @needs("boot_clock")
    async def test_a_lock_that_lingered_is_free_after_a_reboot(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        clock.advance("10d")
        fence = await an_ended_holder(engine, "30s")
        clock.reboot()
        assert await names(engine) == []
        await engine.promote(10)
        assert not await engine.free_lock("table", *fence)

    async def test_nothing_lingers_when_the_session_is_over(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        await take(engine, "table", taken)
        await engine.close_session(session)
        await settle(engine, taken, Cancel(force=True))
        assert await names(engine) == []
