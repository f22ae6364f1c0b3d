"""Locks: rows that are valid only while their holder is, judged by the lease clock."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio

import pytest

from trellis.core.commands import Cancel, Fail, Release
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord, SessionId
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import LockHolder
from trellis.errors import ConfigurationError
from trellis.testing.builders import a_job, a_keyed_job, a_worker, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    claim_one,
    give_up_lost,
    reap_lapsed,
    renew,
    settle,
    start,
)
from trellis.testing.conformance.suite import Another, EngineSuite, needs

#: Texts with special characters of SQL, patterns and encodings.
ODD_NAMES = ("orders/7", "x' or '1'='1", "100%", "_", "ключ", "🔒", " ", "a\nb", "A", "a")


async def take(engine: Engine, name: str, taken: JobRecord) -> LockHolder | None:
    """Try to take a lock for an attempt."""
    return await engine.take_lock(name, *fence_of(taken))


async def names(engine: Engine) -> list[str]:
    """Return the names of the valid locks."""
    return [lock.name for lock in await engine.locks()]


class TestLocks(EngineSuite):
    """One holder at a time: a session, or one attempt of it."""

    async def test_a_free_lock_is_taken_and_the_next_caller_gets_its_holder(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        one = (await engine.open_session(a_worker("ann"), 30 * SECOND)).id
        two = await a_session(engine)
        since = clock.now()
        assert await engine.take_lock("leader", one) is None
        clock.advance("5s")
        ann = LockHolder("leader", one, 0, "ann", None, since)
        assert await engine.take_lock("leader", two) == ann
        assert await engine.locks() == [ann]

    async def test_taking_a_lock_twice_is_taking_it_once(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session, since = await a_session(engine), clock.now()
        for _ in range(3):
            assert await engine.take_lock("leader", session) is None
            clock.advance("1s")
        assert [lock.since for lock in await engine.locks()] == [since]
        assert await engine.free_lock("leader", session)
        assert await engine.locks() == []

    async def test_a_freed_lock_is_had_by_the_next(self, engine: Engine) -> None:
        one, two = await a_session(engine), await a_session(engine)
        await engine.take_lock("leader", one)
        assert await engine.free_lock("leader", one)
        assert await engine.take_lock("leader", two) is None
        assert [lock.session for lock in await engine.locks()] == [two]

    async def test_only_its_holder_can_free_a_lock(self, engine: Engine) -> None:
        session, other = await a_session(engine), await a_session(engine)
        taken = await start(engine, session, a_job())
        await take(engine, "table", taken)
        token = fence_of(taken).token
        for stranger in ((other, 0), (other, token), (session, 0), (session, token + 1)):
            assert not await engine.free_lock("table", *stranger)
        assert not await engine.free_lock("another", session, token)
        assert await names(engine) == ["table"]
        assert await engine.free_lock("table", session, token)
        assert not await engine.free_lock("table", session, token)

    async def test_an_attempt_holds_a_lock_in_the_name_of_its_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = (await engine.open_session(a_worker("ann"), 30 * SECOND)).id
        taken = await start(engine, session, a_job())
        assert await take(engine, "table", taken) is None
        expected = LockHolder("table", *fence_of(taken), "ann", taken.definition.id, clock.now())
        assert await engine.take_lock("table", await a_session(engine)) == expected

    async def test_attempts_of_one_session_and_the_session_itself_are_different_holders(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        one, two = await start(engine, session, a_job()), await start(engine, session, a_job())
        assert await take(engine, "table", one) is None
        for holder in (await take(engine, "table", two), await engine.take_lock("table", session)):
            assert holder is not None
            assert holder.job_id == one.definition.id

    async def test_one_holder_may_have_many_locks_and_they_are_listed_by_name(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        for name in ODD_NAMES:
            assert await take(engine, name, taken) is None
        assert await names(engine) == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            assert await engine.free_lock(name, *fence_of(taken))
        assert await engine.locks() == []

    async def test_a_name_that_not_every_engine_can_store_is_refused(self, engine: Engine) -> None:
        session = await a_session(engine)
        for name in ("", "x" * 513, "a\0b", "\ud800"):
            with pytest.raises(ConfigurationError, match="name of a lock"):
                await engine.take_lock(name, session)
        assert await engine.take_lock("x" * 512, session) is None

    async def test_of_many_who_ask_at_once_one_has_it(self, engine: Engine) -> None:
        sessions = [await a_session(engine) for _ in range(8)]
        answers = await asyncio.gather(*(engine.take_lock("leader", each) for each in sessions))
        assert answers.count(None) == 1
        winner = sessions[answers.index(None)]
        assert {answer.session for answer in answers if answer is not None} == {winner}

    @needs("processes")
    async def test_another_engine_object_sees_the_same_locks(
        self, engine: Engine, another: Another
    ) -> None:
        session, other = await a_session(engine), await another()
        assert await engine.take_lock("leader", session) is None
        holder = await other.take_lock("leader", await a_session(other))
        assert holder is not None
        assert holder.session == session
        assert await other.locks() == await engine.locks()


class TestLockLeases(EngineSuite):
    """A lock ends with its holder, and not before."""

    async def test_a_lock_lasts_as_long_as_its_session_is_renewed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        one, two = await a_session(engine, "30s"), await a_session(engine, "1h")
        await engine.take_lock("leader", one)
        for _ in range(5):
            clock.advance("29s")
            await renew(engine, one)
        clock.advance_micros(30 * SECOND - 1)
        assert await engine.take_lock("leader", two) is not None
        clock.advance_micros(1)
        assert await engine.locks() == []
        assert await engine.take_lock("leader", two) is None
        holder = await engine.take_lock("leader", one)
        assert holder is not None
        assert holder.session == two

    async def test_a_lapsed_session_that_is_renewed_has_its_lock_unless_another_took_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        for name in ("kept", "taken"):
            await engine.take_lock(name, session)
        clock.advance("30s")
        assert await engine.take_lock("taken", await a_session(engine)) is None
        await renew(engine, session)
        assert await engine.take_lock("kept", session) is None
        assert await engine.take_lock("taken", session) is not None
        assert not await engine.free_lock("taken", session)

    async def test_a_wall_clock_that_is_set_ends_no_lock_and_saves_none(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        one, two = await a_session(engine, "30s"), await a_session(engine, "1h")
        await engine.take_lock("leader", one)
        clock.step_wall("365d")
        assert await engine.take_lock("leader", two) is not None
        clock.advance("30s")
        clock.step_wall("730d", back=True)
        assert await engine.take_lock("leader", two) is None

    @needs("boot_clock")
    async def test_a_reboot_ends_every_lock(self, engine: Engine, clock: ManualClock) -> None:
        await engine.take_lock("leader", await a_session(engine, "1h"))
        clock.reboot()
        assert await engine.locks() == []
        assert await engine.take_lock("leader", await a_session(engine)) is None

    async def test_closing_a_session_frees_its_locks_at_once(self, engine: Engine) -> None:
        session, other = await a_session(engine), await a_session(engine)
        taken = await start(engine, session, a_job())
        await engine.take_lock("leader", session)
        await take(engine, "table", taken)
        await engine.take_lock("theirs", other)
        await engine.close_session(session)
        assert await names(engine) == ["theirs"]
        assert not await engine.free_lock("leader", session)
        assert await engine.take_lock("leader", other) is None
        assert await engine.take_lock("table", other) is None

    async def test_reaping_a_session_frees_its_locks_at_once(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        await engine.take_lock("leader", session)
        clock.advance("30s")
        await reap_lapsed(engine)
        assert not await engine.free_lock("leader", session)

    async def test_a_lock_of_an_attempt_ends_when_its_handler_does(self, engine: Engine) -> None:
        session, other = await a_session(engine), await a_session(engine)
        done, back, gave_up, kept = [await start(engine, session, a_job()) for _ in range(4)]
        for name, taken in (("a", done), ("b", back), ("c", gave_up), ("d", kept)):
            await take(engine, name, taken)
        await settle(engine, done, complete(done))
        await settle(engine, back, Release(fence_of(back)))
        await settle(engine, gave_up, Fail(fence_of(gave_up), Failure("x", "y"), cancelled=True))
        await settle(engine, kept, Cancel())  # only asked: it still runs
        assert await names(engine) == ["d"]
        for name in "abc":
            assert await engine.take_lock(name, other) is None

    async def test_the_next_attempt_of_a_job_does_not_inherit_its_lock(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        await take(engine, "table", taken)
        await settle(engine, taken, Release(fence_of(taken)))
        again = await claim_one(engine, session)
        assert again.definition.id == taken.definition.id
        assert await names(engine) == []
        assert await take(engine, "table", again) is None
        holder = await take(engine, "table", taken)
        assert holder is not None
        assert holder.token == fence_of(again).token

    async def test_a_lost_attempt_that_blocks_its_key_holds_no_lock(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        job = a_keyed_job(
            "user/7",
            KeyPolicy("user/{id}"),
            policy=Policy(on_lost="block", key=KeyPolicy("user/{id}")),
        )
        taken = await start(engine, session, job)
        await take(engine, "table", taken)
        clock.advance("30s")
        await reap_lapsed(engine)
        (lost,) = await give_up_lost(engine)
        assert (lost.head.state, lost.head.blocked) == (State.ACTIVE, True)
        assert await engine.take_lock("table", await a_session(engine)) is None

    async def test_an_ended_caller_gets_no_lock_and_is_named_in_the_answer(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        closed, lapsed = await a_session(engine, "1h"), await a_session(engine, "30s")
        session = await a_session(engine, "1h")
        done = await start(engine, session, a_job())
        await settle(engine, done, complete(done))
        await engine.close_session(closed)
        clock.advance("30s")
        token = fence_of(done).token
        for asking in ((closed, 0), (lapsed, 0), (SessionId(7), 0), (session, token), (closed, 9)):
            holder = await engine.take_lock("table", *asking)
            assert holder is not None
            assert (holder.session, holder.token, holder.job_id) == (*asking, None)
            assert await engine.locks() == []
        assert await engine.take_lock("table", session) is None

    async def test_a_renewal_forgets_the_locks_of_attempts_that_are_over(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        done = await start(engine, session, a_job())
        running = await start(engine, session, a_job())
        await engine.take_lock("ours", session)
        await take(engine, "old", done)
        await take(engine, "new", running)
        await settle(engine, done, complete(done))
        await renew(engine, session, running)
        assert not await engine.free_lock("old", *fence_of(done))
        assert await names(engine) == ["new", "ours"]
