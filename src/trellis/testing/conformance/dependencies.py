"""Jobs that wait for others: what the end of one means for those that follow it."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.admission import Reason
from trellis.core.commands import Adjust, Cancel, Complete, Dismiss, Fail, Replay, Retry
from trellis.core.dependencies import Link
from trellis.core.durations import SECOND
from trellis.core.job import Failure, FollowsOn, JobId, JobRecord, NewJob, Prerequisite, Relations
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.retry import Retry as RetryPolicy
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, Committed, Rejected, Replaced
from trellis.testing.builders import a_demand, a_job, a_job_id, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    claim,
    claim_one,
    decided,
    head,
    ids,
    journal,
    kinds,
    settle,
    settle_overdue,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

_BOOM = Failure("exception", "boom")


def following(*records: JobRecord, on: FollowsOn = "success") -> tuple[Prerequisite, ...]:
    """Return what a job waits for: these jobs."""
    return tuple(Prerequisite(each.definition.id, on) for each in records)


def taking_result_of(record: JobRecord) -> NewJob:
    """Return a job whose payload is the result of another."""
    relations = Relations(payload_from=record.definition.id)
    return a_job(payload="null", after=following(record), relations=relations)


async def fail(engine: Engine, record: JobRecord) -> JobRecord:
    """Let a running job fail for good."""
    return await settle(engine, record, Fail(fence_of(record), _BOOM, retryable=False))


class TestDependencies(EngineSuite):
    """A job waits for others, and starts or is cancelled when they end."""

    async def test_a_job_that_follows_another_starts_only_after_its_success(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        second = await accept_one(engine, a_job(after=following(first)))
        assert second.head.state is State.PENDING
        assert await claim(engine, session) == []
        await settle(engine, first, complete(first))
        assert ids(await claim(engine, session)) == ids([second])
        assert await kinds(engine, second) == ["created", "resolved", "started"]

    async def test_a_job_waits_until_all_that_it_follows_have_ended(self, engine: Engine) -> None:
        session = await a_session(engine)
        one, two = [await start(engine, session, a_job()) for _ in range(2)]
        last = await accept_one(engine, a_job(after=following(one, two)))
        await settle(engine, two, complete(two))
        assert await claim(engine, session) == []
        await settle(engine, one, complete(one))
        assert ids(await claim(engine, session)) == ids([last])

    async def test_jobs_that_end_together_release_what_follows_them_once(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        running = [await start(engine, session, a_job()) for _ in range(3)]
        last = await accept_one(engine, a_job(after=following(*running)))
        ends = [await decided(engine, each, complete(each)) for each in running]
        assert await engine.commit(ends) == [Committed()] * 3
        assert ids(await claim(engine, session)) == ids([last])
        assert await kinds(engine, last) == ["created", "resolved", "started"]

    async def test_a_job_whose_prerequisite_fails_is_cancelled_with_all_behind_it(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        second = await accept_one(engine, a_job(after=following(first)))
        third = await accept_one(engine, a_job(after=following(second)))
        finally_ = await accept_one(engine, a_job(after=following(third, on="finished")))
        await fail(engine, first)
        for record in (second, third):
            assert (await head(engine, record)).state is State.CANCELLED
        last = (await journal(engine, second))[-1].data or {}
        assert last["actor"] == "workflow"
        assert first.definition.id in str(last["reason"])
        assert ids(await claim(engine, session)) == ids([finally_])

    async def test_a_job_that_follows_the_end_starts_after_a_failure(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        second = await accept_one(engine, a_job(after=following(first, on="finished")))
        await fail(engine, first)
        assert ids(await claim(engine, session)) == ids([second])

    async def test_a_dead_letter_is_an_end_and_a_later_replay_changes_nothing(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        once = Policy(retry=RetryPolicy.never())
        first = await start(engine, session, a_job(policy=once))
        second = await accept_one(engine, a_job(after=following(first)))
        third = await accept_one(engine, a_job(after=following(first, on="finished")))
        dead = await settle(engine, first, Fail(fence_of(first), _BOOM))
        assert (await head(engine, second)).state is State.CANCELLED
        assert ids(await claim(engine, session)) == ids([third])
        again = await settle(engine, dead, Replay())
        taken = await claim_one(engine, session)
        await settle(engine, taken, complete(taken))
        assert again.head.generation == 1
        assert (await head(engine, second)).state is State.CANCELLED
        assert await kinds(engine, third) == ["created", "resolved", "started"]

    async def test_a_partial_success_is_a_success(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        second = await accept_one(engine, a_job(after=following(first)))
        await settle(engine, first, complete(first, item_errors=1))
        assert ids(await claim(engine, session)) == ids([second])

    async def test_a_retry_of_the_prerequisite_keeps_the_job_waiting(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "10m")
        first = await start(engine, session, a_job())
        second = await accept_one(engine, a_job(after=following(first)))
        await settle(engine, first, Fail(fence_of(first), _BOOM))
        clock.advance("5m")
        again = await claim_one(engine, session)
        assert again.definition.id == first.definition.id
        await settle(engine, again, complete(again))
        assert ids(await claim(engine, session)) == ids([second])

    async def test_the_end_of_a_waiting_prerequisite_counts_too(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        doomed = await accept_one(engine, a_job(deadline_in=SECOND))
        stopped = await accept_one(engine, a_job())
        after_deadline = await accept_one(engine, a_job(after=following(doomed)))
        after_cancel = await accept_one(engine, a_job(after=following(stopped, on="finished")))
        await settle(engine, stopped, Cancel("no"))
        clock.advance("2s")
        await settle_overdue(engine)
        assert (await head(engine, after_deadline)).state is State.CANCELLED
        assert ids(await claim(engine, session)) == ids([after_cancel])

    async def test_links_are_readable_from_both_ends(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        other = await accept_one(engine, a_job(delay=SECOND))
        last = await accept_one(engine, a_job(after=following(first, other)))
        mine, a, b = last.definition.id, first.definition.id, other.definition.id
        both = [Link(mine, a, "success", None), Link(mine, b, "success", None)]
        assert await engine.links([mine]) == both
        await settle(engine, first, complete(first))
        assert await engine.links([a]) == [Link(mine, a, "success", State.COMPLETED)]
        assert await engine.links([a, b, mine], limit=1) == [
            Link(mine, a, "success", State.COMPLETED)
        ]
        assert await engine.links([a_job_id()]) == []


class TestDependentCreation(EngineSuite):
    """What jobs that are to be followed mean for the creation of a job."""

    async def test_an_unknown_prerequisite_is_refused_and_nothing_is_stored(
        self, engine: Engine
    ) -> None:
        known = await accept_one(engine, a_job())
        missing = a_job_id()
        new = a_job(after=(*following(known), Prerequisite(missing)))
        assert await engine.create([new]) == [Rejected(Reason.NO_PREREQUISITE, missing)]
        assert (await engine.load([new.id])).records == (None,)

    async def test_prerequisites_that_have_ended_are_judged_at_creation(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        good = await start(engine, session, a_job())
        bad = await start(engine, session, a_job())
        await settle(engine, good, complete(good))
        await fail(engine, bad)
        ready = await accept_one(engine, a_job(after=following(good)))
        never = await accept_one(engine, a_job(after=following(good, bad)))
        anyway = await accept_one(engine, a_job(after=following(bad, on="finished")))
        assert never.head.state is State.CANCELLED
        assert ids(await claim(engine, session)) == ids([ready, anyway])
        assert await kinds(engine, never) == ["created", "cancelled"]

    async def test_jobs_of_one_call_can_follow_each_other(self, engine: Engine) -> None:
        session = await a_session(engine)
        first, second = a_job(), a_job()
        third = a_job(after=(Prerequisite(first.id), Prerequisite(second.id)))
        fourth = a_job(after=(Prerequisite(third.id),))
        records = await accept(engine, first, second, third, fourth)
        taken = await claim(engine, session)
        assert ids(taken) == [first.id, second.id]
        for each in taken:
            await settle(engine, each, complete(each))
        (next_one,) = await claim(engine, session)
        assert next_one.definition.id == third.id
        await settle(engine, next_one, complete(next_one))
        assert ids(await claim(engine, session)) == ids(records[3:])

    async def test_a_refused_prerequisite_refuses_what_follows_it(self, engine: Engine) -> None:
        taken = await accept_one(engine, a_job())
        first = a_job(id=taken.definition.id, payload='"another"')
        second = a_job(after=(Prerequisite(a_job_id()),))
        third = a_job(after=(Prerequisite(second.id),))
        answers = await engine.create([first, second, third])
        assert [type(each) for each in answers] == [Rejected] * 3

    async def test_a_repeated_call_stores_nothing(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        new = taking_result_of(first)
        await accept_one(engine, new)
        assert await engine.create([new]) == [Accepted(new.id)]
        await settle(engine, first, complete(first, '{"n":1}'))
        assert await engine.create([new]) == [Accepted(new.id)]
        assert await kinds(engine, await the(engine, new.id)) == ["created", "resolved"]

    async def test_a_job_that_replaces_the_one_it_follows_is_judged_by_that(
        self, engine: Engine
    ) -> None:
        newest = KeyPolicy("k", active=1, queued=1, when_full="replace-oldest")
        session = await a_session(engine)
        first = await start(engine, session, a_keyed_job("k", newest))
        old = await accept_one(engine, a_keyed_job("k", newest))
        new = a_keyed_job("k", newest, after=following(old, on="finished"))
        assert await engine.create([new]) == [Replaced(new.id, old.definition.id)]
        assert await engine.links([new.id]) == [
            Link(new.id, old.definition.id, "finished", State.SKIPPED)
        ]
        await settle(engine, first, complete(first))
        assert ids(await claim(engine, session)) == [new.id]

    async def test_a_job_that_follows_a_retried_one_waits_for_its_next_end(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        failed = await fail(engine, await start(engine, session, a_job()))
        await settle(engine, failed, Retry())
        second = await accept_one(engine, a_job(after=following(failed)))
        taken = await claim_one(engine, session)
        assert taken.definition.id == failed.definition.id
        await settle(engine, taken, complete(taken))
        assert ids(await claim(engine, session)) == ids([second])

    async def test_a_dismissed_prerequisite_does_not_succeed(self, engine: Engine) -> None:
        session = await a_session(engine)
        once = Policy(retry=RetryPolicy.never())
        first = await start(engine, session, a_job(policy=once))
        dead = await settle(engine, first, Fail(fence_of(first), _BOOM))
        await settle(engine, dead, Dismiss())
        second = await accept_one(engine, a_job(after=following(first)))
        assert second.head.state is State.CANCELLED


class TestHandedOnResults(EngineSuite):
    """The result of a job becomes the payload of the one that follows it."""

    async def test_the_result_is_the_payload_of_the_next_job(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        second = await accept_one(engine, taking_result_of(first))
        assert second.definition.payload == "null"
        await settle(engine, first, complete(first, '{"total":42}'))
        (taken,) = await claim(engine, session)
        assert (taken.definition.id, taken.definition.payload) == (
            second.definition.id,
            '{"total":42}',
        )
        released = (await journal(engine, second))[1].data or {}
        assert released["payload_from"] == first.definition.id

    async def test_a_job_without_a_result_hands_on_null(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        await accept_one(engine, taking_result_of(first))
        await settle(engine, first, Complete(fence_of(first), None))
        assert (await claim_one(engine, session)).definition.payload == "null"

    async def test_the_result_of_an_ended_job_is_handed_on_at_creation(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        await settle(engine, first, complete(first, "[1]"))
        assert (await accept_one(engine, taking_result_of(first))).definition.payload == "[1]"

    async def test_a_result_waits_for_the_other_prerequisites(self, engine: Engine) -> None:
        session = await a_session(engine)
        first, other = [await start(engine, session, a_job()) for _ in range(2)]
        new = taking_result_of(first)
        await accept_one(engine, new._replace(after=following(first, other)))
        await settle(engine, first, complete(first, "[1]"))
        await settle(engine, other, complete(other, "[2]"))
        assert (await claim_one(engine, session)).definition.payload == "[1]"


class TestWaitingForJobs(EngineSuite):
    """What else may happen to a job while it waits for others."""

    async def test_a_waiting_job_can_be_cancelled_and_stays_so(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        second = await accept_one(engine, a_job(after=following(first)))
        await settle(engine, second, Cancel("no"))
        await settle(engine, first, complete(first))
        assert (await head(engine, second)).state is State.CANCELLED
        assert await claim(engine, session) == []

    async def test_a_waiting_job_expires(self, engine: Engine, clock: ManualClock) -> None:
        first = await accept_one(engine, a_job(delay=60 * SECOND))
        second = await accept_one(engine, a_job(after=following(first), deadline_in=SECOND))
        clock.advance("2s")
        assert ids(await settle_overdue(engine)) == ids([second])
        assert (await head(engine, second)).state is State.EXPIRED

    async def test_a_changed_job_waits_on(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        soon = clock.now() + 20 * SECOND
        second = await accept_one(engine, a_job(after=following(first)))
        third = await accept_one(engine, a_keyed_job("k", IN_TURN, after=following(first)))
        for record in (second, third):
            await settle(engine, record, Adjust(priority=2))
        second = await the(engine, second.definition.id)
        await settle(engine, second, Adjust(run_at=soon))
        assert await claim(engine, session) == []
        assert await engine.promote(10) == 0
        await settle(engine, first, complete(first))
        assert ids(await claim(engine, session)) == ids([third])
        clock.advance("21s")
        assert ids(await claim(engine, session)) == ids([second])

    async def test_a_released_job_starts_no_earlier_than_its_time(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        second = await accept_one(engine, a_job(after=following(first), delay=20 * SECOND))
        await settle(engine, first, complete(first))
        assert await claim(engine, session) == []
        clock.advance("20s")
        assert ids(await claim(engine, session)) == ids([second])

    async def test_a_released_job_is_due_from_its_release(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        second = await accept_one(engine, a_job(after=following(first)))
        clock.advance("20s")
        between = await accept_one(engine, a_job())
        clock.advance("1s")
        await settle(engine, first, complete(first))
        assert (await head(engine, second)).run_at == clock.now()
        assert ids(await claim(engine, session)) == ids([between, second])

    async def test_a_released_job_with_a_key_waits_for_its_turn(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        holder = await start(engine, session, a_keyed_job("k", IN_TURN))
        second = await accept_one(engine, a_keyed_job("k", IN_TURN, after=following(first)))
        await settle(engine, first, complete(first))
        assert await claim(engine, session) == []
        await settle(engine, holder, complete(holder))
        assert ids(await claim(engine, session)) == ids([second])

    async def test_a_waiting_job_holds_no_slot_of_its_key(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        await accept_one(engine, a_keyed_job("k", IN_TURN, after=following(first)))
        other = await accept_one(engine, a_keyed_job("k", IN_TURN))
        assert ids(await claim(engine, session)) == ids([other])

    async def test_a_job_is_kept_while_one_that_follows_it_has_not_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        short = Policy(retention=Retention(SECOND, SECOND, SECOND, SECOND))
        session = await a_session(engine, "1h")
        first, other = [await start(engine, session, a_job(policy=short)) for _ in range(2)]
        last = await accept_one(engine, a_job(after=following(first, other), policy=short))
        await settle(engine, first, complete(first))
        clock.advance("1m")
        assert await engine.prune(10) == 0
        assert await engine.remove([first.definition.id]) == ["needed"]
        await settle(engine, other, complete(other))
        taken = await claim_one(engine, session)
        assert ids([taken]) == ids([last])
        await settle(engine, taken, complete(taken))
        assert await engine.remove([first.definition.id]) == ["removed"]
        clock.advance("1m")
        assert await engine.prune(10) == 2
        assert await engine.links([JobId(first.definition.id), last.definition.id]) == []

    async def test_many_followers_of_one_job_are_all_released(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        many = [a_job(after=following(first)) for _ in range(700)]
        assert await engine.create(many) == [Accepted(new.id) for new in many]
        await settle(engine, first, complete(first))
        for _ in range(3):
            await engine.promote(1000)
        assert len(await claim(engine, session, a_demand(limit=1000), limit=1000)) == len(many)

    async def test_a_long_chain_is_cancelled_to_its_end(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        chain = [a_job(after=following(first))]
        while len(chain) < 600:
            chain.append(a_job(after=(Prerequisite(chain[-1].id),)))
        assert await engine.create(chain) == [Accepted(new.id) for new in chain]
        await fail(engine, first)
        for _ in range(3):
            await engine.promote(1000)
        assert (await the(engine, chain[-1].id)).head.state is State.CANCELLED
