"""Create: what is stored, what the engine adds, what a repeated call does."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import pytest

from trellis.core.admission import Reason
from trellis.core.durations import SECOND, micros
from trellis.core.events import Event, EventKind
from trellis.core.job import NewJob, Prerequisite, Relations, define
from trellis.core.lifecycle import creation
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, JobFilter, QueueSettings, Rejected
from trellis.errors import ConfigurationError
from trellis.testing.builders import SERVICE, a_job, a_job_id, a_keyed_job, complete
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    claim_one,
    ids,
    journal,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite


class TestCreate(EngineSuite):
    """A job is accepted once, and stored as requested."""

    async def test_an_accepted_job_is_stored_as_it_was_asked_for(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new = a_job(
            priority=2,
            payload=r'{"name":"Zoë \u0041","n":[1,2.5,null,true]}',
            tags=(("team", "ops"), ("tier", "gold")),
            config='{"region":"eu"}',
            expect="plan-1",
            schema_version=3,
            clone_of=a_job_id(),
            deadline_in=micros("1h"),
            relations=Relations(parent=a_job_id(), fan_in_of="b", tenant="Zoë"),
        )
        record = await accept_one(engine, new)
        assert record.definition == define(new, record.definition.row, clock.now())

    async def test_every_part_of_a_policy_comes_back(self, engine: Engine) -> None:
        policy = Policy(
            retry=Retry.exponential("3s", attempts=7, factor=1.5, cap="9m", jitter=0.25),
            timeout=micros("2m"),
            activity_timeout=micros("5m"),
            cancel_grace=micros("7s"),
            on_lost="block",
            on_shutdown="fail",
            dead_letters=False,
            max_crashes=5,
            key=KeyPolicy("user/{id}", 2, 3, "replace-oldest", "job"),
            retention=Retention(1, 2, 3, 4),
        )
        record = await accept_one(engine, a_job(policy=policy, key="user/7"))
        assert record.definition.policy == policy

    async def test_a_new_job_is_pending_with_one_event(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job())
        event, head = creation(clock.now(), clock.now())
        assert record.head == head
        assert await journal(engine, record) == [event]

    async def test_the_engine_stamps_the_creation(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance("3m")
        record = await accept_one(engine, a_job(delay=5 * SECOND, deadline_in=9 * SECOND))
        now = clock.now()
        assert record.definition.created_at == now
        assert record.head.run_at == now + 5 * SECOND
        assert record.definition.deadline_at == now + 9 * SECOND

    async def test_an_explicit_start_is_kept_unless_it_is_past(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        now = clock.now()
        later, past = await accept(engine, a_job(run_at=now + 60), a_job(run_at=now - 60))
        assert (later.head.run_at, past.head.run_at) == (now + 60, now)
        assert (await journal(engine, later))[0].data == {"run_at": now + 60}

    async def test_jobs_are_numbered_in_creation_order(self, engine: Engine) -> None:
        first = await accept(engine, a_job(), a_job(), a_job())
        second = await accept(
            engine, a_keyed_job("user/1", KeyPolicy("user/{id}")), a_job(dedupe="a"), a_job()
        )
        rows = [record.definition.row for record in (*first, *second)]
        assert rows == sorted(set(rows))

    async def test_a_batch_may_mix_kinds_of_jobs(self, engine: Engine) -> None:
        jobs = [
            a_job(),
            a_job(type="refund", queue="refunds"),
            a_job(service="depot", priority=-4),
            a_keyed_job("user/7", KeyPolicy("user/{id}")),
            a_job(dedupe="d", idempotency_key="i"),
            a_job(delay=SECOND),
        ]
        records = await accept(engine, *jobs)
        assert [record.definition.payload for record in records] == [new.payload for new in jobs]
        found = await engine.find(JobFilter())
        assert {record.definition.id for record in found.jobs} == {new.id for new in jobs}

    async def test_an_empty_batch_creates_nothing(self, engine: Engine) -> None:
        assert await engine.create([]) == []

    async def test_the_same_job_sent_twice_is_stored_once(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new = a_job()
        first = await accept_one(engine, new)
        clock.advance("1m")
        assert await engine.create([new]) == [Accepted(new.id)]
        assert await the(engine, new.id) == first
        assert len(await journal(engine, first)) == 1

    async def test_the_same_job_twice_in_one_batch_is_stored_once(self, engine: Engine) -> None:
        new, other = a_job(), a_job()
        answers = await engine.create([new, other, new])
        assert answers == [Accepted(new.id), Accepted(other.id), Accepted(new.id)]
        assert len((await engine.find(JobFilter())).jobs) == 2
        assert len(await engine.journal(new.id)) == 1

    async def test_a_repeated_call_is_answered_after_the_job_has_ended(
        self, engine: Engine
    ) -> None:
        new = a_keyed_job("user/1", KeyPolicy("user/{id}"), dedupe="once")
        await accept_one(engine, new)
        session = await a_session(engine)
        taken = await claim_one(engine, session)
        done = await settle(engine, taken, complete(taken))
        assert await engine.create([new]) == [Accepted(new.id)]
        assert (await the(engine, new.id)).head == done.head

    async def test_another_payload_under_a_used_id_is_rejected(self, engine: Engine) -> None:
        new = a_job()
        record = await accept_one(engine, new)
        for other in (
            new._replace(payload='{"order":8}'),
            new._replace(type="refund"),
            new._replace(service="depot"),
        ):
            assert await engine.create([other]) == [Rejected(Reason.JOB_ID_TAKEN, new.id)]
        assert await the(engine, new.id) == record

    async def test_a_rejected_job_of_a_batch_stops_no_other(self, engine: Engine) -> None:
        taken = a_job()
        await accept_one(engine, taken)
        fresh = a_job()
        answers = await engine.create([taken._replace(payload="1"), fresh])
        assert answers == [Rejected(Reason.JOB_ID_TAKEN, taken.id), Accepted(fresh.id)]

    async def test_a_job_that_no_engine_should_see_is_refused(self, engine: Engine) -> None:
        for wrong in (a_job(priority=9), a_job(service="workers"), a_job(queue="a b")):
            with pytest.raises(ConfigurationError):
                await engine.create([wrong])
        assert (await engine.find(JobFilter())).jobs == ()

    async def test_a_new_job_can_be_claimed_at_once(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        (taken,) = await claim(engine, await a_session(engine))
        assert taken.definition == record.definition
        assert taken.head.state is State.ACTIVE

    async def test_the_first_event_carries_no_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job())
        created = Event(EventKind.CREATED, 1, State.PENDING, clock.now(), 0, None, None)
        assert await journal(engine, record) == [created]

    async def test_every_job_of_a_call_is_checked_not_only_the_first(self, engine: Engine) -> None:
        for bad in (a_job(expect="\0"), a_job(tags=(("a", "1"), ("a", "2")))):
            with pytest.raises(ConfigurationError):
                await engine.create([a_job(), a_job(), bad])
        assert (await engine.find(JobFilter())).jobs == ()


def together(*jobs: NewJob) -> list[NewJob]:
    """Return jobs that are stored together or not at all."""
    return [new._replace(together=True) for new in jobs]


class TestTogether(EngineSuite):
    """Jobs that are stored together are all stored, or none is."""

    async def test_nothing_is_stored_if_one_is_refused(self, engine: Engine) -> None:
        await engine.set_queue(QueueSettings(SERVICE, "closed", draining=True))
        first = a_job(queue="fresh")
        last = a_job(queue="closed", after=(Prerequisite(first.id),))
        behind = a_job(after=(Prerequisite(last.id),))
        answers = await engine.create(together(first, a_job(), last, behind))
        assert answers == [
            Rejected(Reason.OTHER_REFUSED, None),
            Rejected(Reason.OTHER_REFUSED, None),
            Rejected(Reason.DRAINING, None),
            Rejected(Reason.NO_PREREQUISITE, last.id),
        ]
        assert (await engine.find(JobFilter())).jobs == ()
        assert await engine.links([first.id, last.id]) == []
        session = await a_session(engine)
        assert await claim(engine, session) == []
        # The queue was new in the call that was undone.
        await accept_one(engine, a_job(queue="fresh"))
        assert (await claim_one(engine, session)).definition.queue == "fresh"

    async def test_the_same_call_is_stored_once_nothing_refuses_it(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", active=1, queued=0)
        session = await a_session(engine)
        holder = await start(engine, session, a_keyed_job("u", rule))
        first = a_job()
        jobs = together(first, a_keyed_job("u", rule, after=(Prerequisite(first.id),)))
        assert await engine.create(jobs) == [
            Rejected(Reason.OTHER_REFUSED, None),
            Rejected(Reason.KEY_BUSY, holder.definition.id),
        ]
        await settle(engine, holder, complete(holder))
        for _ in range(2):  # a repeated call gets the same answer
            assert await engine.create(jobs) == [Accepted(new.id) for new in jobs]
        assert ids(await claim(engine, session)) == [first.id]

    async def test_no_other_job_is_replaced_for_what_is_not_stored(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", active=1, queued=1, when_full="replace-oldest")
        session = await a_session(engine)
        await start(engine, session, a_keyed_job("u", rule))
        waiting = await accept_one(engine, a_keyed_job("u", rule))
        await engine.set_queue(QueueSettings(SERVICE, "closed", draining=True))
        answers = await engine.create(together(a_keyed_job("u", rule), a_job(queue="closed")))
        assert answers == [
            Rejected(Reason.OTHER_REFUSED, None),
            Rejected(Reason.DRAINING, None),
        ]
        assert await the(engine, waiting.definition.id) == waiting

    async def test_a_job_that_would_be_merged_is_refused(self, engine: Engine) -> None:
        existing = await accept_one(engine, a_job(dedupe="d"))
        merged = Rejected(Reason.SAME_DEDUPE_KEY, existing.definition.id)
        other = Rejected(Reason.OTHER_REFUSED, None)
        assert await engine.create(together(a_job(), a_job(dedupe="d"))) == [other, merged]
        first, second = together(a_job(dedupe="e"), a_job(dedupe="e"))
        merged = Rejected(Reason.SAME_DEDUPE_KEY, first.id)
        assert await engine.create([first, second]) == [other, merged]
        first, second = together(a_job(idempotency_key="i"), a_job(idempotency_key="i"))
        merged = Rejected(Reason.SAME_IDEMPOTENCY_KEY, first.id)
        assert await engine.create([first, second]) == [other, merged]
        assert (await engine.find(JobFilter())).jobs == (existing,)

    async def test_jobs_of_one_key_that_exclude_each_other_are_refused(
        self, engine: Engine
    ) -> None:
        rule = KeyPolicy("user/{id}", active=1, queued=0)
        first = a_keyed_job("u", rule)
        second = a_keyed_job("u", rule, after=(Prerequisite(first.id),))
        assert await engine.create(together(first, second)) == [
            Rejected(Reason.OTHER_REFUSED, None),
            Rejected(Reason.KEY_BUSY, first.id),
        ]
        rule = KeyPolicy("user/{id}", active=1, queued=1)
        third = a_keyed_job("v", rule, delay=SECOND)
        jobs = together(third, *(a_keyed_job("v", rule) for _ in range(2)))
        *_, answer = await engine.create(jobs)
        assert answer == Rejected(Reason.QUEUE_FULL, jobs[1].id)
        assert (await engine.find(JobFilter())).jobs == ()
