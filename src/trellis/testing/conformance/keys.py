"""Admission to a key: which jobs are accepted, rejected, coalesced, replaced or revived."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio

from trellis.core.admission import Reason
from trellis.core.commands import Cancel, Complete, Fail, ReleaseKey, Replay, Snooze
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.job import Failure
from trellis.core.keys import hash_key
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Coalesced,
    Committed,
    KeyRefused,
    KeyStatus,
    Rejected,
    Replaced,
)
from trellis.testing.builders import SERVICE, TYPE, a_job, a_keyed_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    attempt,
    claim,
    give_up_lost,
    head,
    holders,
    ids,
    journal,
    key_status,
    kinds,
    reap_lapsed,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

KEY = "user/7"
BOOM = Failure("exception", "boom")
REJECT = KeyPolicy("user/{id}", 1, 0, "reject")
COALESCE = KeyPolicy("user/{id}", 1, 1, "coalesce")
REPLACE = KeyPolicy("user/{id}", 1, 1, "replace-oldest")


class TestAdmission(EngineSuite):
    """A full key answers by its policy, and never admits one job too many."""

    async def test_a_busy_key_rejects_and_names_its_holder(self, engine: Engine) -> None:
        first = await accept_one(engine, a_keyed_job(KEY, REJECT))
        busy = [Rejected(Reason.KEY_BUSY, first.definition.id)]
        assert await engine.create([a_keyed_job(KEY, REJECT)]) == busy
        (taken,) = await claim(engine, await a_session(engine))
        assert await engine.create([a_keyed_job(KEY, REJECT)]) == busy
        await settle(engine, taken, Complete(fence_of(taken)))
        await accept_one(engine, a_keyed_job(KEY, REJECT))

    async def test_a_full_line_rejects_as_full(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, 2, "reject")
        first = await accept(engine, *(a_keyed_job(KEY, rule) for _ in range(3)))
        answers = await engine.create([a_keyed_job(KEY, rule)])
        assert answers == [Rejected(Reason.QUEUE_FULL, first[0].definition.id)]

    async def test_a_retry_in_backoff_still_fills_its_key(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, REJECT))
        await settle(engine, taken, Snooze(fence_of(taken), 9 * SECOND))
        (answer,) = await engine.create([a_keyed_job(KEY, REJECT)])
        assert isinstance(answer, Rejected)
        assert answer.reason is Reason.QUEUE_FULL

    async def test_a_delayed_job_fills_its_key(self, engine: Engine) -> None:
        await accept_one(engine, a_keyed_job(KEY, REJECT, delay=9 * SECOND))
        (answer,) = await engine.create([a_keyed_job(KEY, REJECT)])
        assert isinstance(answer, Rejected)

    async def test_any_number_may_wait_where_the_policy_says_wait(self, engine: Engine) -> None:
        await accept(engine, *(a_keyed_job(KEY, IN_TURN) for _ in range(20)))
        unlimited = KeyPolicy("user/{id}", 1, None, "reject")
        await accept(engine, *(a_keyed_job("user/8", unlimited) for _ in range(20)))

    async def test_concurrent_creates_never_let_in_one_too_many(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 2, 1, "reject")
        jobs = [a_keyed_job(KEY, rule) for _ in range(15)]
        answers = await asyncio.gather(*(engine.create([new]) for new in jobs))
        assert sum(isinstance(answer, Accepted) for (answer,) in answers) == 3

    async def test_keys_of_different_types_do_not_meet(self, engine: Engine) -> None:
        await accept(
            engine,
            a_keyed_job(KEY, REJECT),
            a_keyed_job(KEY, REJECT, type="refund"),
            a_keyed_job(KEY, REJECT, service="depot"),
            a_keyed_job("user/8", REJECT),
        )

    async def test_coalesce_merges_only_when_the_key_is_full(self, engine: Engine) -> None:
        first, second = await accept(engine, *(a_keyed_job(KEY, COALESCE) for _ in range(2)))
        answers = await engine.create([a_keyed_job(KEY, COALESCE)])
        assert answers == [Coalesced(second.definition.id, Reason.KEY_BUSY)]
        await settle(engine, first, Cancel())
        await accept_one(engine, a_keyed_job(KEY, COALESCE))

    async def test_coalesce_merges_into_the_newest_never_claimed_else_the_holder(
        self, engine: Engine
    ) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "coalesce")
        taken = await start(engine, await a_session(engine), a_keyed_job(KEY, rule))
        answers = await engine.create([a_keyed_job(KEY, rule)])
        assert answers == [Coalesced(taken.definition.id, Reason.KEY_BUSY)]

    async def test_replace_skips_the_oldest_waiting_job(self, engine: Engine) -> None:
        session = await a_session(engine)
        running = await start(engine, session, a_keyed_job(KEY, REPLACE))
        waiting = await accept_one(engine, a_keyed_job(KEY, REPLACE))
        newer = a_keyed_job(KEY, REPLACE)
        assert await engine.create([newer]) == [Replaced(newer.id, waiting.definition.id)]
        assert (await head(engine, waiting)).state is State.SKIPPED
        assert (await journal(engine, waiting))[-1].data == {"replaced_by": newer.id}
        assert await head(engine, running) == running.head
        await settle(engine, running, Complete(fence_of(running)))
        assert ids(await claim(engine, session)) == [newer.id]

    async def test_a_replaced_job_passes_its_slot_on(self, engine: Engine) -> None:
        first, second = await accept(engine, *(a_keyed_job(KEY, REPLACE) for _ in range(2)))
        third = a_keyed_job(KEY, REPLACE)
        assert await engine.create([third]) == [Replaced(third.id, first.definition.id)]
        assert await holders(engine, KEY) == [second.definition.id]
        (taken,) = await claim(engine, await a_session(engine))
        assert taken.definition.id == second.definition.id

    async def test_only_never_claimed_jobs_are_replaced(self, engine: Engine) -> None:
        session = await a_session(engine)
        retrying = await start(engine, session, a_keyed_job(KEY, REPLACE))
        await settle(engine, retrying, Snooze(fence_of(retrying), 9 * SECOND))
        await start(engine, session, a_keyed_job(KEY, REPLACE))
        (answer,) = await engine.create([a_keyed_job(KEY, REPLACE)])
        assert isinstance(answer, Rejected)
        assert answer.reason is Reason.QUEUE_FULL
        assert (await head(engine, retrying)).state is State.RETRY

    async def test_a_repeated_replacement_replaces_nothing_more(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "replace-oldest")
        first, newer = await accept_one(engine, a_keyed_job(KEY, rule)), a_keyed_job(KEY, rule)
        assert await engine.create([newer]) == [Replaced(newer.id, first.definition.id)]
        assert await engine.create([newer]) == [Accepted(newer.id)]
        assert await kinds(engine, await the(engine, newer.id)) == ["created"]


class TestKeyStatus(EngineSuite):
    """Operators see the holders of a key, the number that wait, and what blocks it."""

    async def test_a_key_shows_its_holders_and_how_many_wait(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 2, None, "wait")
        records = await accept(engine, *(a_keyed_job(KEY, rule) for _ in range(5)))
        expected = KeyStatus(
            SERVICE, TYPE, KEY, hash_key(SERVICE, TYPE, KEY), tuple(ids(records[:2])), 3, False
        )
        assert await engine.keys(SERVICE, TYPE) == [expected]

    async def test_only_keys_in_use_are_listed_in_order(self, engine: Engine) -> None:
        await accept(
            engine,
            *(a_keyed_job(key, REJECT) for key in ("user/9", "user/1", "user/5")),
            a_job(),
            a_keyed_job("user/0", REJECT, type="refund"),
        )
        (record,) = await accept(engine, a_keyed_job("user/3", REJECT))
        await settle(engine, record, Cancel())
        assert [status.key for status in await engine.keys(SERVICE, TYPE)] == [
            "user/1",
            "user/5",
            "user/9",
        ]
        assert await engine.keys("depot", TYPE) == []

    async def test_a_key_with_only_a_delayed_job_has_one_waiting(self, engine: Engine) -> None:
        await accept_one(engine, a_keyed_job(KEY, IN_TURN, delay=9 * SECOND))
        status = await key_status(engine, KEY)
        assert status is not None
        assert (status.holders, status.waiting) == ((), 1)

    async def test_a_blocked_key_is_reported_as_blocked_until_it_is_released(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = Policy(on_lost="block", key=IN_TURN)
        taken = await start(
            engine, await a_session(engine), a_keyed_job(KEY, IN_TURN, policy=policy)
        )
        waiting = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        clock.advance("30s")
        await reap_lapsed(engine)
        (blocked,) = await give_up_lost(engine)
        assert (blocked.head.state, blocked.head.fence) == (State.ACTIVE, taken.head.fence)
        status = await key_status(engine, KEY)
        assert status is not None
        assert (status.blocked, status.holders) == (True, tuple(ids([taken])))
        assert (await engine.due("lost", 10)).jobs == ()
        assert await claim(engine, await a_session(engine)) == []
        after = await settle(engine, blocked, ReleaseKey("fail"))
        assert after.head.state is State.FAILED
        assert await holders(engine, KEY) == ids([waiting])
        status = await key_status(engine, KEY)
        assert status is not None
        assert not status.blocked

    async def test_a_blocked_attempt_may_still_complete(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = Policy(on_lost="block", key=IN_TURN)
        new = a_keyed_job(KEY, IN_TURN, policy=policy)
        await start(engine, await a_session(engine), new)
        clock.advance("30s")
        await reap_lapsed(engine)
        (blocked,) = await give_up_lost(engine)
        done = await settle(engine, blocked, Complete(fence_of(blocked)))
        assert done.head.state is State.COMPLETED
        assert await key_status(engine, KEY) is None


class TestRevival(EngineSuite):
    """An ended job is revived only if its key has room."""

    async def test_a_failed_job_cannot_come_back_to_a_full_key(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, REJECT))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        other = await accept_one(engine, a_keyed_job(KEY, REJECT))
        refused = KeyRefused(Reason.KEY_BUSY, other.definition.id)
        before = await journal(engine, failed)
        assert await attempt(engine, failed, RetryJob()) == refused
        assert await the(engine, failed.definition.id) == failed
        assert await journal(engine, failed) == before

    async def test_a_failed_job_comes_back_when_its_key_is_free(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, REJECT))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        revived = await settle(engine, failed, RetryJob())
        assert revived.head.state is State.PENDING
        assert await holders(engine, KEY) == ids([revived])
        assert ids(await claim(engine, session)) == ids([revived])

    async def test_a_dead_letter_waits_in_line_where_there_is_one(self, engine: Engine) -> None:
        session = await a_session(engine)
        policy = Policy(retry=Retry.never())
        taken = await start(engine, session, a_keyed_job(KEY, IN_TURN, policy=policy))
        dead = await settle(engine, taken, Fail(fence_of(taken), BOOM))
        assert dead.head.state is State.DEAD
        running = await start(engine, session, a_keyed_job(KEY, IN_TURN))
        assert await attempt(engine, dead, Replay()) == Committed()
        assert await claim(engine, session) == []
        await settle(engine, running, Complete(fence_of(running)))
        assert ids(await claim(engine, session)) == ids([dead])

    async def test_a_revival_replaces_and_coalesces_no_job(self, engine: Engine) -> None:
        session = await a_session(engine)
        for rule in (REPLACE, COALESCE):
            key = f"user/{rule.when_full}"
            taken = await start(engine, session, a_keyed_job(key, rule))
            failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
            others = await accept(engine, a_keyed_job(key, rule), a_keyed_job(key, rule))
            answer = await attempt(engine, failed, RetryJob())
            assert answer == KeyRefused(Reason.QUEUE_FULL, others[0].definition.id)
            for other in others:
                assert await head(engine, other) == other.head
                await settle(engine, other, Cancel())

    async def test_of_two_revivals_of_one_job_one_is_stored(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job(KEY, REJECT))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        both = await asyncio.gather(*(attempt(engine, failed, RetryJob()) for _ in range(2)))
        assert sum(answer == Committed() for answer in both) == 1
        assert (await head(engine, failed)).generation == 1
