"""An attempt ended from outside keeps its slot until its handler is known to have stopped."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from collections.abc import Callable

import pytest

from trellis.core.admission import Reason
from trellis.core.commands import Cancel, Command, Complete, Expire, Fail, LoseLease, Release
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import KeyRefused, Rejected
from trellis.testing.builders import a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept_one,
    attempt,
    claim,
    holders,
    ids,
    reap_lapsed,
    renew,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite, needs

KEY = "user/7"
#: One slot or two, of which a job keeps one between its attempts.
HELD = KeyPolicy("user/{id}", active=1, queued=None, when_full="wait", hold="job")
HELD_OF_TWO = KeyPolicy("user/{id}", active=2, queued=None, when_full="wait", hold="job")
LATE = Failure("timeout", "too late")
#: Every way in which an attempt is ended from outside while its handler may still run.
FROM_OUTSIDE: dict[str, Callable[[JobRecord], Command]] = {
    "forced cancel": lambda _: Cancel(force=True),
    "deadline": lambda _: Expire(),
    "timeout, tried again": lambda taken: Fail(fence_of(taken), LATE, stopped=False),
    "timeout, for good": lambda taken: Fail(fence_of(taken), LATE, False, stopped=False),
    "silence": lambda taken: LoseLease(fence_of(taken), stopped=False),
}


class TestSlotLingering(EngineSuite):
    """A slot lingers while its handler may still run, and never longer than one lease."""

    async def test_the_slot_stays_taken_until_the_worker_reports_that_the_handler_stopped(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        for number, word in enumerate(FROM_OUTSIDE.values()):
            key = f"user/{number}"
            taken = await start(engine, session, a_keyed_job(key, IN_TURN, deadline_in=SECOND))
            waiting = await accept_one(engine, a_keyed_job(key, IN_TURN))
            clock.advance("1s")
            await settle(engine, taken, word(taken))
            assert await holders(engine, key) == ids([taken])
            assert await claim(engine, session) == []
            await renew(engine, session, stopped=(fence_of(taken),))
            assert await holders(engine, key) == ids([waiting])
            assert ids(await claim(engine, session)) == ids([waiting])

    async def test_a_job_that_has_a_slot_again_does_not_keep_the_one_that_lingered(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        rule = KeyPolicy("k", active=2, queued=None, when_full="wait", hold="job")
        policy = Policy(retry=Retry.fixed("1s"))
        taken = await start(engine, session, a_keyed_job(KEY, rule, policy=policy))
        await settle(engine, taken, Fail(fence_of(taken), LATE, stopped=False))
        clock.advance("2s")
        await engine.promote(100)
        await renew(engine, session, stopped=(fence_of(taken),))
        (again,) = await claim(engine, session)
        await settle(engine, again, Complete(fence_of(again)))
        assert await holders(engine, KEY) == []
        both = [await accept_one(engine, a_keyed_job(KEY, rule)) for _ in range(2)]
        assert ids(await claim(engine, session)) == ids(both)

    async def test_all_slots_that_have_lingered_are_freed_by_a_promote_of_one_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        keys = ["user/1", "user/2", "user/3"]
        for key in keys:
            taken = await start(engine, session, a_keyed_job(key, IN_TURN))
            await settle(engine, taken, Cancel(force=True))
        clock.advance("31s")
        assert await engine.promote(1) == len(keys)
        assert [await holders(engine, key) for key in keys] == [[], [], []]

    async def test_a_renewal_that_does_not_name_the_handler_frees_nothing(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await settle(engine, taken, Cancel(force=True))
        assert (await renew(engine, session, taken)).lost == (fence_of(taken),)
        await renew(engine, session)
        assert await holders(engine, KEY) == ids([taken])

    async def test_another_session_cannot_say_that_the_handler_stopped(
        self, engine: Engine
    ) -> None:
        session, other = await a_session(engine), await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await settle(engine, taken, Cancel(force=True))
        await renew(engine, other, stopped=(fence_of(taken),))
        assert await holders(engine, KEY) == ids([taken])

    async def test_saying_that_a_running_attempt_stopped_frees_nothing(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        await renew(engine, session, taken, stopped=(fence_of(taken),))
        assert await holders(engine, KEY) == ids([taken])

    async def test_a_lingering_slot_ends_after_one_lease_however_often_it_was_renewed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        clock.advance("10s")
        await settle(engine, taken, Cancel(force=True))
        clock.advance("15s")
        await renew(engine, session)
        clock.advance_micros(15 * SECOND - 1)
        await engine.promote(10)
        assert await holders(engine, KEY) == ids([taken])
        clock.advance_micros(1)
        assert await engine.promote(10) == 1
        assert await holders(engine, KEY) == ids([waiting])

    @needs("boot_clock")
    async def test_a_wall_clock_step_ends_no_lingering_slot(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        await settle(engine, taken, Cancel(force=True))
        clock.step_wall("1d")
        await engine.promote(10)
        assert await holders(engine, KEY) == ids([taken])

    async def test_reaping_the_session_ends_its_lingering_slots(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        clock.advance("29s")
        await settle(engine, taken, Cancel(force=True))
        clock.advance("1s")
        await reap_lapsed(engine)
        assert await holders(engine, KEY) == ids([waiting])

    async def test_a_slot_lingers_on_after_its_session_was_closed_but_not_for_ever(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await settle(engine, taken, Release(fence_of(taken), stopped=False))
        await engine.close_session(session)
        assert await holders(engine, KEY) == ids([taken])
        clock.advance("30s")
        await engine.promote(10)
        assert await holders(engine, KEY) == ids([taken]), "it keeps its place in the queue"
        await settle(engine, await the(engine, taken.definition.id), Cancel())
        assert await holders(engine, KEY) == ids([waiting])

    async def test_a_job_that_holds_its_slot_waits_for_its_own_old_handler(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        strict = KeyPolicy("user/{id}", queued=None, hold="job")
        session = await a_session(engine, "1h")
        policy = Policy(retry=Retry.fixed("1s"))
        taken = await start(engine, session, a_keyed_job(KEY, strict, policy=policy))
        await accept_one(engine, a_keyed_job(KEY, strict))
        await settle(engine, taken, Fail(fence_of(taken), LATE, stopped=False))
        clock.advance("2s")
        await engine.promote(10)
        assert await claim(engine, session) == []
        await renew(engine, session, stopped=(fence_of(taken),))
        again = await claim(engine, session)
        assert ids(again) == ids([taken])
        assert await holders(engine, KEY) == ids([taken])

    async def test_a_job_that_holds_its_slot_goes_on_after_lingering_with_a_job_ahead_of_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        policy = Policy(retry=Retry.fixed("5s"))
        taken = await start(engine, session, a_keyed_job(KEY, HELD, policy=policy))
        waiting = await accept_one(engine, a_keyed_job(KEY, HELD))
        await settle(engine, taken, Fail(fence_of(taken), LATE, stopped=False))
        for wait in ("0s", "5s"):
            clock.advance(wait)
            assert await claim(engine, session) == []
        clock.advance("25s")
        # The first job in line is looked at before maintenance ends the lingering.
        early = await claim(engine, session)
        await engine.promote(10)
        (again,) = early or await claim(engine, session)
        assert again.definition.id == taken.definition.id
        assert await claim(engine, session) == []
        await settle(engine, again, complete(again))
        assert ids(await claim(engine, session)) == ids([waiting])

    @pytest.mark.parametrize("by", ["create", "commit"])
    async def test_a_job_goes_on_whatever_finds_first_that_its_slot_has_lingered(
        self, engine: Engine, clock: ManualClock, by: str
    ) -> None:
        session = await a_session(engine, "30s")
        policy = Policy(retry=Retry.fixed("5s"))
        rule = HELD_OF_TWO
        taken = await start(engine, session, a_keyed_job(KEY, rule, policy=policy))
        other = await start(engine, session, a_keyed_job(KEY, rule))
        await settle(engine, taken, Fail(fence_of(taken), LATE, stopped=False))
        for wait in ("0s", "5s"):
            clock.advance(wait)
            assert await claim(engine, session) == []
        clock.advance("25s")
        if by == "create":
            await accept_one(engine, a_keyed_job(KEY, rule, delay=3600 * SECOND))
        else:
            await settle(engine, other, complete(other))
        await engine.promote(10)
        assert ids(await claim(engine, session)) == ids([taken])

    async def test_a_job_that_has_its_slot_back_waits_out_its_backoff(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        policy = Policy(retry=Retry.fixed("10m"))
        taken = await start(engine, session, a_keyed_job(KEY, HELD, policy=policy))
        await settle(engine, taken, Fail(fence_of(taken), LATE, stopped=False))
        clock.advance("2s")
        await renew(engine, session, stopped=(fence_of(taken),))
        assert await claim(engine, session) == []
        clock.advance("9m")
        assert await claim(engine, session) == []
        clock.advance("58s")
        await engine.promote(10)
        assert ids(await claim(engine, session)) == ids([taken])

    async def test_a_job_whose_two_slots_have_lingered_gets_one_of_them_back(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        policy = Policy(retry=Retry.fixed("0s"))
        rule = HELD_OF_TWO
        taken = await start(engine, session, a_keyed_job(KEY, rule, policy=policy))
        await settle(engine, taken, Fail(fence_of(taken), LATE, stopped=False))
        (again,) = await claim(engine, session)
        await settle(engine, again, Fail(fence_of(again), LATE, stopped=False))
        clock.advance("30s")
        await engine.promote(10)
        (last,) = await claim(engine, session)
        await settle(engine, last, complete(last))
        both = [await accept_one(engine, a_keyed_job(KEY, rule)) for _ in range(2)]
        assert ids(await claim(engine, session)) == ids(both)

    @needs("boot_clock")
    async def test_a_slot_that_lingered_is_free_after_a_reboot(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        clock.advance("10d")
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await settle(engine, taken, Cancel(force=True))
        await engine.close_session(session)
        clock.reboot()
        await engine.promote(10)
        assert await holders(engine, KEY) == ids([waiting])

    async def test_a_new_job_is_never_merged_into_one_that_has_ended(self, engine: Engine) -> None:
        merging = KeyPolicy("user/{id}", when_full="coalesce")
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, merging))
        await settle(engine, taken, Cancel(force=True))
        assert await engine.create([a_keyed_job(KEY, merging)]) == [Rejected(Reason.KEY_BUSY, None)]

    async def test_nothing_lingers_when_the_session_is_over(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_keyed_job(KEY, IN_TURN))
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        clock.advance("30s")
        await reap_lapsed(engine)
        await settle(engine, taken, Cancel(force=True))
        assert await holders(engine, KEY) == ids([waiting])

    async def test_a_job_lost_to_silence_waits_for_its_own_old_handler(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        policy = Policy(retry=Retry.fixed("1s"))
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN, policy=policy))
        after = await settle(engine, taken, LoseLease(fence_of(taken), stopped=False))
        assert after.head.state is State.RETRY
        clock.advance("1s")
        assert await claim(engine, session) == []
        await renew(engine, session, stopped=(fence_of(taken),))
        assert ids(await claim(engine, session)) == ids([taken])

    async def test_a_lingering_slot_keeps_its_key_full(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "reject")
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, rule))
        failed = await settle(engine, taken, FROM_OUTSIDE["timeout, for good"](taken))
        assert failed.head.state is State.FAILED
        assert isinstance(await attempt(engine, failed, RetryJob()), KeyRefused)
        await renew(engine, session, stopped=(fence_of(taken),))
        await settle(engine, failed, RetryJob())

    async def test_one_of_several_slots_may_linger_while_the_others_go_on(
        self, engine: Engine
    ) -> None:
        rule = KeyPolicy("user/{id}", 2, None, "wait")
        session = await a_session(engine)
        one = await start(engine, session, a_keyed_job(KEY, rule))
        two = await start(engine, session, a_keyed_job(KEY, rule))
        three = await accept_one(engine, a_keyed_job(KEY, rule))
        await settle(engine, one, Cancel(force=True))
        assert await claim(engine, session) == []
        await settle(engine, two, Fail(fence_of(two), LATE, retryable=False))
        assert await holders(engine, KEY) == ids([one, three])
