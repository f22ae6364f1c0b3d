"""Slots: a limited number per key, handed over in the order of claims, in the same step."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import random
from collections.abc import Callable

from trellis.core.commands import (
    Cancel,
    Command,
    Complete,
    Crash,
    Expire,
    Fail,
    LoseLease,
    Release,
    Snooze,
)
from trellis.core.durations import SECOND, micros
from trellis.core.job import Failure, JobRecord
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.testing.builders import a_keyed_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    claim,
    claim_one,
    give_up_lost,
    head,
    holders,
    ids,
    kinds,
    reap_lapsed,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

KEY = "user/7"
BOOM = Failure("exception", "boom")
#: Every way in which an attempt itself leaves `active`: each frees the slot at once.
ENDINGS: tuple[Callable[[JobRecord], Command], ...] = (
    lambda taken: Complete(fence_of(taken)),
    lambda taken: Complete(fence_of(taken), item_errors=2),
    lambda taken: Fail(fence_of(taken), BOOM, roll=1.0),
    lambda taken: Fail(fence_of(taken), BOOM, retryable=False),
    lambda taken: Fail(fence_of(taken), BOOM, cancelled=True),
    lambda taken: Snooze(fence_of(taken), 60 * SECOND),
    lambda taken: LoseLease(fence_of(taken)),
    lambda taken: Crash(fence_of(taken), "signal 9"),
)


class TestSlots(EngineSuite):
    """Only a job with a slot of its key can run."""

    async def test_the_next_of_a_key_waits_until_the_slot_is_free(self, engine: Engine) -> None:
        session = await a_session(engine)
        first, second, third = await accept(engine, *(a_keyed_job(KEY, IN_TURN) for _ in range(3)))
        for record in (first, second, third):
            (taken,) = await claim(engine, session)
            assert taken.definition.id == record.definition.id
            assert await claim(engine, session) == []
            assert await holders(engine, KEY) == ids([record])
            await settle(engine, taken, Complete(fence_of(taken)))
        assert await holders(engine, KEY) == []

    async def test_waiting_for_a_slot_changes_nothing_about_the_job(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await claim(engine, session)
        await settle(engine, taken, Complete(fence_of(taken)))
        assert await holders(engine, KEY) == ids([waiting])
        assert await head(engine, waiting) == waiting.head
        assert await kinds(engine, waiting) == ["created"]

    async def test_every_ending_of_an_attempt_frees_its_slot_in_the_same_step(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        for number, ending in enumerate(ENDINGS):
            key = f"user/{number}"
            taken = await start(engine, session, a_keyed_job(key, IN_TURN))
            waiting = await accept_one(engine, a_keyed_job(key, IN_TURN))
            await settle(engine, taken, ending(taken))
            assert await holders(engine, key) == ids([waiting])
            assert ids(await claim(engine, session)) == ids([waiting])

    async def test_a_job_handed_back_keeps_its_slot_before_younger_ones(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await settle(engine, taken, Release(fence_of(taken)))
        assert await holders(engine, KEY) == ids([taken])
        assert ids(await claim(engine, session)) == ids([taken])

    async def test_asking_for_a_cancel_frees_nothing(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await settle(engine, taken, Cancel())
        assert await holders(engine, KEY) == ids([taken])
        assert await claim(engine, session) == []

    async def test_a_waiting_job_that_ends_passes_its_reserved_slot_on(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        one, two, three = await accept(
            engine,
            a_keyed_job(KEY, IN_TURN),
            a_keyed_job(KEY, IN_TURN, deadline_in=SECOND),
            a_keyed_job(KEY, IN_TURN),
        )
        await settle(engine, one, Cancel())
        assert await holders(engine, KEY) == ids([two])
        clock.advance("1s")
        await settle(engine, two, Expire())
        assert await holders(engine, KEY) == ids([three])
        assert ids(await claim(engine, await a_session(engine))) == ids([three])

    async def test_a_waiting_job_without_a_slot_ends_quietly(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await settle(engine, waiting, Cancel())
        assert await holders(engine, KEY) == ids([taken])

    async def test_a_delayed_job_takes_no_slot_before_its_time(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        delayed = await accept_one(engine, a_keyed_job(KEY, IN_TURN, delay=10 * SECOND))
        assert await holders(engine, KEY) == []
        running = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        clock.advance("10s")
        assert await engine.promote(10) == 1
        assert await claim(engine, session) == []
        await settle(engine, running, Complete(fence_of(running)))
        assert ids(await claim(engine, session)) == ids([delayed])

    async def test_promotion_gives_a_due_job_the_free_slot(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        delayed = await accept_one(engine, a_keyed_job(KEY, IN_TURN, delay=10 * SECOND))
        clock.advance("10s")
        await engine.promote(10)
        assert await holders(engine, KEY) == ids([delayed])
        assert await head(engine, delayed) == delayed.head

    async def test_of_jobs_that_are_promoted_together_the_one_due_first_gets_the_slot(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept_one(engine, a_keyed_job(KEY, IN_TURN, delay=10 * SECOND))
        due_first = await accept_one(engine, a_keyed_job(KEY, IN_TURN, delay=5 * SECOND))
        clock.advance("10s")
        assert await engine.promote(10) == 2
        assert await holders(engine, KEY) == ids([due_first])

    async def test_a_reaped_session_frees_its_slots_once_its_jobs_are_given_up(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_keyed_job(KEY, IN_TURN))
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        clock.advance("30s")
        await reap_lapsed(engine)
        assert await holders(engine, KEY) == ids([taken])
        await give_up_lost(engine)
        assert await holders(engine, KEY) == ids([waiting])

    async def test_never_more_than_the_limit_run_at_once(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        dice = random.Random(7)  # noqa: S311 - a workload, not a secret
        session = await a_session(engine, "9999d")
        rule = KeyPolicy("user/{id}", 3, None, "wait")
        policy = Policy(retry=Retry.fixed("5s", attempts=3), dead_letters=False)
        await accept(engine, *(a_keyed_job(KEY, rule, policy=policy) for _ in range(12)))
        running: list[JobRecord] = []
        for _ in range(120):
            running += await claim(engine, session, limit=dice.randint(1, 3))
            held = await holders(engine, KEY)
            assert len(running) <= len(held) <= 3
            assert set(ids(running)) <= set(held)
            clock.advance(dice.choice((0, 1, 5)))
            if running and dice.random() < 0.8:
                taken = running.pop(dice.randrange(len(running)))
                ending = dice.choice(ENDINGS)
                await settle(engine, await the(engine, taken.definition.id), ending(taken))

    async def test_jobs_of_other_keys_do_not_wait(self, engine: Engine) -> None:
        jobs = [a_keyed_job(f"user/{number}", IN_TURN) for number in range(5)]
        await accept(engine, *jobs)
        assert len(await claim(engine, await a_session(engine))) == 5


class TestTurns(EngineSuite):
    """A free slot goes to the next due job of its key: by priority, due time, creation."""

    async def test_the_jobs_of_a_key_run_by_priority_then_due_time_then_creation(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "9999d")
        running = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        late, soon, first, second, low, high = await accept(
            engine,
            a_keyed_job(KEY, IN_TURN, delay=9 * SECOND),
            a_keyed_job(KEY, IN_TURN, delay=5 * SECOND),
            a_keyed_job(KEY, IN_TURN),
            a_keyed_job(KEY, IN_TURN, queue="other"),
            a_keyed_job(KEY, IN_TURN, priority=-1),
            a_keyed_job(KEY, IN_TURN, priority=2, delay=9 * SECOND),
        )
        clock.advance("10s")
        await engine.promote(100)
        assert await claim(engine, session) == []
        for expected in (high, first, second, soon, late, low):
            await settle(engine, running, Complete(fence_of(running)))
            assert await holders(engine, KEY) == ids([expected])
            running = await claim_one(engine, session)
            assert running.definition.id == expected.definition.id

    async def test_a_retry_comes_after_the_jobs_that_were_due_before_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "9999d")
        policy = Policy(retry=Retry.fixed("5s"))
        failing = await start(engine, session, a_keyed_job(KEY, IN_TURN, policy=policy))
        second, third = await accept(engine, *(a_keyed_job(KEY, IN_TURN) for _ in range(2)))
        await settle(engine, failing, Fail(fence_of(failing), BOOM))
        clock.advance("5s")
        await engine.promote(100)
        for expected in (second, third, failing):
            running = await claim_one(engine, session)
            assert running.definition.id == expected.definition.id
            await settle(engine, running, Complete(fence_of(running)))

    async def test_of_jobs_that_are_created_together_the_first_in_order_gets_the_slot(
        self, engine: Engine
    ) -> None:
        low, high = await accept(
            engine,
            a_keyed_job(KEY, IN_TURN, priority=-1),
            a_keyed_job(KEY, IN_TURN, priority=1),
        )
        assert await holders(engine, KEY) == ids([high])
        assert low.head.state is State.PENDING

    async def test_a_job_that_has_the_slot_keeps_it_before_one_of_a_higher_priority(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        ready = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        await accept_one(engine, a_keyed_job(KEY, IN_TURN, priority=4))
        assert ids(await claim(engine, session)) == ids([ready])


class TestSlotsHeldByJobs(EngineSuite):
    """With hold=job a slot is kept from the first start to the end of the job."""

    STRICT = KeyPolicy("user/{id}", 1, None, "wait", "job")

    async def test_the_slot_is_kept_between_attempts(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "9999d")
        policy = Policy(retry=Retry.fixed("10s", attempts=9))
        taken = await start(engine, session, a_keyed_job(KEY, self.STRICT, policy=policy))
        waiting = await accept_one(engine, a_keyed_job(KEY, self.STRICT))
        words: tuple[Callable[[JobRecord], Command], ...] = (
            lambda record: Fail(fence_of(record), BOOM),
            lambda record: Fail(fence_of(record), BOOM, delay=10 * SECOND),
            lambda record: Snooze(fence_of(record), 10 * SECOND),
            lambda record: Release(fence_of(record)),
            lambda record: LoseLease(fence_of(record)),
            lambda record: Crash(fence_of(record), "signal 9"),
            lambda record: Crash(fence_of(record), "signal 9", begun=False),
            lambda record: Crash(fence_of(record), "signal 9", alone=False),
        )
        for word in words:
            after = await settle(engine, taken, word(taken))
            assert after.head.state is State.RETRY
            assert await holders(engine, KEY) == ids([taken])
            if after.head.run_at > await engine.now():
                assert await claim(engine, session) == []
            clock.advance("10s")
            await engine.promote(10)
            taken = await claim_one(engine, session)
            assert taken.definition.id == after.definition.id
        await settle(engine, taken, Complete(fence_of(taken)))
        assert ids(await claim(engine, session)) == ids([waiting])

    async def test_a_job_that_is_not_due_holds_nothing_and_later_ones_run(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "9999d")
        (later,) = await accept(engine, a_keyed_job(KEY, self.STRICT, delay=micros("1h")))
        first, second = await accept(engine, *(a_keyed_job(KEY, self.STRICT) for _ in range(2)))
        assert await holders(engine, KEY) == ids([first])
        for expected in (first, second, later):
            taken = await claim_one(engine, session)
            assert taken.definition.id == expected.definition.id
            clock.advance("2h")  # now all three are due, and the first still holds the slot
            await engine.promote(10)
            await settle(engine, taken, Complete(fence_of(taken)))

    async def test_the_slot_is_free_when_the_job_has_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "9999d")
        taken = await start(engine, session, a_keyed_job(KEY, self.STRICT))
        waiting = await accept_one(engine, a_keyed_job(KEY, self.STRICT))
        resting = await settle(engine, taken, Snooze(fence_of(taken), micros("1h")))
        await settle(engine, resting, Cancel())
        assert await holders(engine, KEY) == ids([waiting])
        clock.advance("2h")
        assert ids(await claim(engine, session)) == ids([waiting])
