"""Dedupe and idempotency keys: repeated requests make one job."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trellis.control import Applied, apply_all
from trellis.core.admission import Reason
from trellis.core.commands import Cancel, Command, Complete, Expire, Fail, Release, Snooze
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.job import Dedupe, Failure, Fence
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.retry import Retry
from trellis.core.states import ENDED, State
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Coalesced,
    CreateResult,
    JobFilter,
    QueueSettings,
    Rejected,
    Replaced,
)
from trellis.testing.builders import QUEUE, SERVICE, a_job, a_keyed_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    claim_one,
    head,
    settle,
    start,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom")


class TestDedupe(EngineSuite):
    """A dedupe key prevents a second job only while the first has never been claimed."""

    async def test_a_second_job_of_a_dedupe_key_is_merged_into_the_first(
        self, engine: Engine
    ) -> None:
        first = await accept_one(engine, a_job(dedupe="order-7"))
        answers = await engine.create([a_job(dedupe="order-7", payload="8")])
        assert answers == [Coalesced(first.definition.id, Reason.SAME_DEDUPE_KEY)]
        assert len((await engine.find(JobFilter())).jobs) == 1

    async def test_two_of_a_dedupe_key_in_one_batch_are_one_job(self, engine: Engine) -> None:
        one, two = a_job(dedupe="d"), a_job(dedupe="d")
        answers = await engine.create([one, two])
        assert answers == [Accepted(one.id), Coalesced(one.id, Reason.SAME_DEDUPE_KEY)]

    async def test_concurrent_creates_of_a_dedupe_key_make_one_job(self, engine: Engine) -> None:
        jobs = [a_job(dedupe="d") for _ in range(12)]
        answers = await asyncio.gather(*(engine.create([new]) for new in jobs))
        assert sum(isinstance(answer, Accepted) for (answer,) in answers) == 1
        assert len((await engine.find(JobFilter())).jobs) == 1

    async def test_the_mark_belongs_to_one_type_of_one_service(self, engine: Engine) -> None:
        await accept(
            engine,
            a_job(dedupe="d"),
            a_job(dedupe="d", type="refund"),
            a_job(dedupe="d", service="depot"),
            a_job(dedupe="other"),
        )

    async def test_the_first_claim_clears_the_mark(self, engine: Engine) -> None:
        await accept_one(engine, a_job(dedupe="d"))
        await claim_one(engine, await a_session(engine))
        await accept_one(engine, a_job(dedupe="d"))

    async def test_a_cancel_clears_the_mark(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job(dedupe="d"))
        await settle(engine, record, Cancel())
        await accept_one(engine, a_job(dedupe="d"))

    async def test_expiry_clears_the_mark(self, engine: Engine, clock: ManualClock) -> None:
        record = await accept_one(engine, a_job(dedupe="d", deadline_in=SECOND))
        clock.advance("1s")
        await settle(engine, record, Expire())
        await accept_one(engine, a_job(dedupe="d"))

    async def test_being_skipped_clears_the_mark(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "replace-oldest")
        record = await accept_one(engine, a_keyed_job("user/1", rule, dedupe="d"))
        newer = a_keyed_job("user/1", rule, dedupe="other")
        assert await engine.create([newer]) == [Replaced(newer.id, record.definition.id)]
        await accept_one(engine, a_job(dedupe="d"))

    async def test_no_retry_takes_the_mark_again(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(dedupe="d"))
        waiting = await settle(engine, taken, Release(fence_of(taken)))
        assert waiting.head.state is State.RETRY
        await accept_one(engine, a_job(dedupe="d"))

    async def test_a_revived_job_does_not_take_the_mark_again(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(dedupe="d"))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        await settle(engine, failed, RetryJob())
        await accept_one(engine, a_job(dedupe="d"))

    async def test_a_revived_job_comes_back_though_another_has_its_mark(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(dedupe="d"))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        other = await accept_one(engine, a_job(dedupe="d"))
        await settle(engine, failed, RetryJob())
        again = await engine.create([a_job(dedupe="d")])
        assert again == [Coalesced(other.definition.id, Reason.SAME_DEDUPE_KEY)]

    async def test_a_delayed_job_keeps_its_mark_until_it_is_claimed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first = await accept_one(engine, a_job(dedupe="d", delay=9 * SECOND))
        clock.advance("9s")
        await engine.promote(10)
        answers = await engine.create([a_job(dedupe="d")])
        assert answers == [Coalesced(first.definition.id, Reason.SAME_DEDUPE_KEY)]

    async def test_a_merged_job_is_merged_even_while_its_queue_drains(self, engine: Engine) -> None:
        first = await accept_one(engine, a_job(dedupe="d"))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        answers = await engine.create([a_job(dedupe="d"), a_job(dedupe="e")])
        assert answers == [
            Coalesced(first.definition.id, Reason.SAME_DEDUPE_KEY),
            Rejected(Reason.DRAINING, None),
        ]


class TestDedupeUnfinished(EngineSuite):
    """With dedupe_while=unfinished a key holds until its job has ended, in whatever way."""

    KEY = Dedupe("d", "unfinished")

    async def test_the_key_holds_while_the_job_runs_and_waits_for_its_retry(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "9999d")
        taken = await start(engine, session, a_job(dedupe=self.KEY))
        merged = [Coalesced(taken.definition.id, Reason.SAME_DEDUPE_KEY)]
        assert await engine.create([a_job(dedupe="d")]) == merged
        rests: tuple[Callable[[Fence], Command], ...] = (
            lambda fence: Fail(fence, BOOM),
            lambda fence: Snooze(fence, SECOND),
        )
        for rest in rests:
            await settle(engine, taken, rest(fence_of(taken)))
            assert await engine.create([a_job(dedupe=self.KEY)]) == merged
            clock.advance("1h")
            await engine.promote(10)
            taken = await claim_one(engine, session)
        assert await engine.create([a_job(dedupe=self.KEY)]) == merged
        await settle(engine, taken, Complete(fence_of(taken)))
        await accept_one(engine, a_job(dedupe=self.KEY))

    async def test_every_end_clears_the_key(self, engine: Engine) -> None:
        session = await a_session(engine)
        policy = Policy(retry=Retry.never())
        ends: tuple[Callable[[Fence], Command], ...] = (
            Complete,
            lambda fence: Complete(fence, item_errors=1),
            lambda fence: Fail(fence, BOOM),  # dead
            lambda fence: Fail(fence, BOOM, retryable=False),
            lambda _: Cancel(force=True),
        )
        for end in ends:
            taken = await start(engine, session, a_job(dedupe=self.KEY, policy=policy))
            ended = await settle(engine, taken, end(fence_of(taken)))
            assert ended.head.state in ENDED
        waiting = await accept_one(engine, a_job(dedupe=self.KEY))
        await settle(engine, waiting, Cancel())
        await accept_one(engine, a_job(dedupe=self.KEY))

    async def test_several_ends_in_one_batch_clear_their_keys(self, engine: Engine) -> None:
        session = await a_session(engine)
        keys = [Dedupe(f"d{number}", "unfinished") for number in range(3)]
        await accept(engine, *(a_job(dedupe=key) for key in keys))
        taken = await claim(engine, session)
        now = await engine.now()
        changes = [(each, Complete(fence_of(each))) for each in taken]
        assert all(isinstance(each, Applied) for each in await apply_all(engine, changes, now))
        await accept(engine, *(a_job(dedupe=key) for key in keys))

    async def test_the_holder_of_the_key_decides_how_long_it_holds(self, engine: Engine) -> None:
        session = await a_session(engine)
        await start(engine, session, a_job(dedupe="d"))
        second = await accept_one(engine, a_job(dedupe=self.KEY))
        (taken,) = await claim(engine, session)
        assert taken.definition == second.definition
        answers = await engine.create([a_job(dedupe="d")])
        assert answers == [Coalesced(second.definition.id, Reason.SAME_DEDUPE_KEY)]

    async def test_a_revived_job_does_not_take_the_key_again(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(dedupe=self.KEY))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        await settle(engine, failed, RetryJob())
        other = await accept_one(engine, a_job(dedupe=self.KEY))
        await claim(engine, session)
        answers = await engine.create([a_job(dedupe=self.KEY)])
        assert answers == [Coalesced(other.definition.id, Reason.SAME_DEDUPE_KEY)]

    async def test_concurrent_creates_beside_claims_make_one_job(self, engine: Engine) -> None:
        session = await a_session(engine)

        async def create_and_claim() -> CreateResult:
            (answer,) = await engine.create([a_job(dedupe=self.KEY)])
            await claim(engine, session)
            return answer

        answers = await asyncio.gather(*(create_and_claim() for _ in range(12)))
        assert sum(isinstance(answer, Accepted) for answer in answers) == 1


class TestDedupePeriod(EngineSuite):
    """With dedupe_for a key holds so long after creation, whatever happens to the job."""

    KEY = Dedupe("d", None, 60 * SECOND)

    async def test_the_key_holds_for_its_period_and_no_longer(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "9999d")
        taken = await start(engine, session, a_job(dedupe=self.KEY))
        merged = [Coalesced(taken.definition.id, Reason.SAME_DEDUPE_KEY)]
        assert await engine.create([a_job(dedupe="d")]) == merged
        await settle(engine, taken, Complete(fence_of(taken)))
        clock.advance("59s")
        assert await engine.create([a_job(dedupe="d")]) == merged
        clock.advance("1s")
        second = await accept_one(engine, a_job(dedupe=self.KEY))
        answers = await engine.create([a_job(dedupe=self.KEY)])
        assert answers == [Coalesced(second.definition.id, Reason.SAME_DEDUPE_KEY)]

    async def test_the_key_is_free_after_its_period_though_its_job_waits(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept_one(engine, a_job(dedupe=self.KEY))
        clock.advance("60s")
        await accept_one(engine, a_job(dedupe=self.KEY))

    async def test_with_both_options_the_key_holds_until_both_are_over(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "9999d")
        both = self.KEY._replace(during="unfinished")
        taken = await start(engine, session, a_job(dedupe=both))
        merged = [Coalesced(taken.definition.id, Reason.SAME_DEDUPE_KEY)]
        clock.advance("2m")
        assert await engine.create([a_job(dedupe=both)]) == merged
        await settle(engine, taken, Complete(fence_of(taken)))
        short = await start(engine, session, a_job(dedupe=both))
        await settle(engine, short, Complete(fence_of(short)))
        answers = await engine.create([a_job(dedupe=both)])
        assert answers == [Coalesced(short.definition.id, Reason.SAME_DEDUPE_KEY)]

    async def test_a_skipped_job_keeps_its_key_for_the_period(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "replace-oldest")
        old, new = a_keyed_job("user/1", rule, dedupe=self.KEY), a_keyed_job("user/1", rule)
        answers = await engine.create([old, new, a_job(dedupe="d")])
        merged = Coalesced(old.id, Reason.SAME_DEDUPE_KEY)
        assert answers == [Accepted(old.id), Replaced(new.id, old.id), merged]
        assert await engine.create([a_job(dedupe=self.KEY)]) == [merged]

    async def test_retention_keeps_the_job_as_long_as_its_key(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = Policy(retention=Retention(completed=SECOND, other=SECOND))
        session = await a_session(engine, "9999d")
        await accept(
            engine,
            a_job(policy=policy, dedupe=self.KEY),
            a_job(policy=policy, dedupe=self.KEY._replace(key="e")),
            a_job(policy=policy),
        )
        taken = await claim(engine, session)
        now = await engine.now()
        await apply_all(engine, [(each, Complete(fence_of(each))) for each in taken], now)
        clock.advance("59s")
        assert await engine.prune(10) == 1
        answers = await engine.create([a_job(dedupe=self.KEY)])
        assert answers == [Coalesced(taken[0].definition.id, Reason.SAME_DEDUPE_KEY)]
        clock.advance("1s")
        assert await engine.prune(10) == 2

    async def test_the_key_goes_with_a_job_that_an_operator_removes(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(dedupe=self.KEY))
        await settle(engine, taken, Complete(fence_of(taken)))
        assert await engine.remove([taken.definition.id]) == ["removed"]
        await accept_one(engine, a_job(dedupe=self.KEY))


class TestIdempotency(EngineSuite):
    """An idempotency key means one job for as long as that job is kept."""

    async def test_the_same_request_gives_the_same_job(self, engine: Engine) -> None:
        first = await accept_one(engine, a_job(idempotency_key="k"))
        answers = await engine.create([a_job(idempotency_key="k")])
        assert answers == [Coalesced(first.definition.id, Reason.SAME_IDEMPOTENCY_KEY)]
        assert len((await engine.find(JobFilter())).jobs) == 1

    async def test_another_payload_under_the_key_is_rejected(self, engine: Engine) -> None:
        first = await accept_one(engine, a_job(idempotency_key="k"))
        answers = await engine.create([a_job(idempotency_key="k", payload='{"order":8}')])
        assert answers == [Rejected(Reason.IDEMPOTENCY_MISMATCH, first.definition.id)]

    async def test_the_key_outlives_the_run_of_its_job(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(idempotency_key="k"))
        await settle(engine, taken, Complete(fence_of(taken)))
        answers = await engine.create([a_job(idempotency_key="k")])
        assert answers == [Coalesced(taken.definition.id, Reason.SAME_IDEMPOTENCY_KEY)]
        assert await claim(engine, session) == []

    async def test_the_key_goes_with_its_job(self, engine: Engine, clock: ManualClock) -> None:
        policy = Policy(retention=Retention(completed=SECOND, other=SECOND))
        record = await accept_one(engine, a_job(idempotency_key="k", policy=policy))
        await settle(engine, record, Cancel())
        clock.advance("1s")
        assert await engine.prune(10) == 1
        await accept_one(engine, a_job(idempotency_key="k", payload="8"))

    async def test_concurrent_creates_of_an_idempotency_key_make_one_job(
        self, engine: Engine
    ) -> None:
        jobs = [a_job(idempotency_key="k") for _ in range(12)]
        answers = await asyncio.gather(*(engine.create([new]) for new in jobs))
        assert sum(isinstance(answer, Accepted) for (answer,) in answers) == 1

    async def test_the_key_belongs_to_one_type_of_one_service(self, engine: Engine) -> None:
        await accept(
            engine,
            a_job(idempotency_key="k"),
            a_job(idempotency_key="k", type="refund", payload="8"),
            a_job(idempotency_key="k", service="depot", payload="9"),
        )

    async def test_the_same_id_is_looked_at_before_the_key(self, engine: Engine) -> None:
        new = a_job(idempotency_key="k", dedupe="d")
        await accept_one(engine, new)
        assert await engine.create([new]) == [Accepted(new.id)]

    async def test_an_idempotency_key_is_looked_at_before_a_dedupe_key(
        self, engine: Engine
    ) -> None:
        one = await accept_one(engine, a_job(idempotency_key="k"))
        await accept_one(engine, a_job(dedupe="d"))
        answers = await engine.create([a_job(idempotency_key="k", dedupe="d")])
        assert answers == [Coalesced(one.definition.id, Reason.SAME_IDEMPOTENCY_KEY)]

    async def test_a_known_request_is_answered_while_its_queue_drains(self, engine: Engine) -> None:
        new = a_job(idempotency_key="k")
        record = await accept_one(engine, new)
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        answers = await engine.create([new, a_job(idempotency_key="k"), a_job()])
        assert answers == [
            Accepted(new.id),
            Coalesced(new.id, Reason.SAME_IDEMPOTENCY_KEY),
            Rejected(Reason.DRAINING, None),
        ]
        assert await head(engine, record) == record.head
