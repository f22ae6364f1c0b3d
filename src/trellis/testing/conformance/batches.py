"""Batches: a group of jobs finishes once, when all its members have ended for the first time."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from typing import Any

import pytest

from trellis import control
from trellis.core import commands
from trellis.core.admission import Reason
from trellis.core.batches import Batch, NewBatch, fan_in_id
from trellis.core.commands import Cancel, Command, Complete, Dismiss, Fail, Replay
from trellis.core.durations import micros
from trellis.core.job import Failure, JobRecord, NewJob, Relations
from trellis.core.policy import Policy, Retention
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.audit import AuditFilter, By
from trellis.engines.batches import BatchFilter, BatchStatus
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import Committed, JobFilter, Rejected
from trellis.testing.builders import (
    SERVICE,
    TYPE,
    JobParts,
    a_job,
    a_job_id,
    complete,
    fence_of,
)
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    claim_one,
    decided,
    settle,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom")
ANN = By("ann", "a test")
ONCE = Policy(retry=Retry.never())
THEN = a_job(type="report", queue="reports", payload='{"day":7}', priority=2, tags=(("t", "x"),))


def a_batch(**parts: Any) -> NewBatch:  # noqa: ANN401 - any field of a batch
    """Return a request to open a batch with a fan-in job."""
    return NewBatch(**{"id": a_job_id(), "service": SERVICE, "then": THEN, **parts})


def member_of(batch: NewBatch, **parts: Any) -> NewJob:  # noqa: ANN401 - any part of a job
    """Return a request for a member."""
    given: JobParts = {"policy": ONCE, "relations": Relations(batch=batch.id), **parts}  # type: ignore[typeddict-item]
    return a_job(**given)


async def opened(engine: Engine, members: int, **parts: Any) -> tuple[NewBatch, list[JobRecord]]:  # noqa: ANN401
    """Open a batch with some members."""
    new = a_batch(**parts)
    assert await engine.open_batch(new) is not None
    return new, await accept(engine, *(member_of(new) for _ in range(members)))


async def status(engine: Engine, new: NewBatch) -> BatchStatus:
    """Return the status of a batch that must be there."""
    (found,) = await engine.batch_statuses([new.id])
    assert found is not None
    return found


async def fan_ins(engine: Engine) -> list[JobRecord]:
    """Return the fan-in jobs that were created, oldest first."""
    page = await engine.find(JobFilter(types=("report",)))
    return sorted(page.jobs, key=lambda each: each.definition.row)


async def end(engine: Engine, taken: JobRecord, state: State = State.COMPLETED) -> JobRecord:
    """End a claimed job in this state."""
    words: dict[State, Command] = {
        State.COMPLETED: Complete(fence_of(taken), "1"),
        State.FAILED: Fail(fence_of(taken), BOOM, retryable=False),
        State.DEAD: Fail(fence_of(taken), BOOM),
        State.CANCELLED: Cancel(force=True),
    }
    return await settle(engine, taken, words[state])


class TestBatches(EngineSuite):
    """A sealed batch finishes in the step that ends its last member, and fires once."""

    async def test_the_last_end_of_a_sealed_batch_creates_the_fan_in_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new, _ = await opened(engine, 3)
        session = await a_session(engine)
        first, second, last = await claim(engine, session)
        await end(engine, first)
        sealed = await engine.seal_batch(new.id)
        assert sealed is not None
        assert (sealed.state, sealed.sealed_at) == ("sealed", clock.now())
        await end(engine, second, State.DEAD)
        assert await fan_ins(engine) == []
        clock.advance("1s")
        await end(engine, last)
        (job,) = await fan_ins(engine)
        assert job.definition.id == fan_in_id(new.id, THEN)
        assert job.definition.relations == Relations(fan_in_of=new.id)
        assert (job.definition.payload, job.definition.priority) == ('{"day":7}', 2)
        assert (job.definition.tags, job.definition.queue) == ((("t", "x"),), "reports")
        batch, counts, finished, _ = await status(engine, new)
        assert (batch.state, batch.fan_in, batch.finished_at) == (
            "finished", job.definition.id, clock.now(),
        )  # fmt: skip
        assert (batch.succeeded, finished) == (False, 3)
        assert counts == {State.COMPLETED: 2, State.DEAD: 1}
        assert await claim_one(engine, session, Demand(SERVICE, ("report",), 1))

    async def test_a_fan_in_job_keeps_its_parent_and_its_tenant(self, engine: Engine) -> None:
        parent = await accept_one(engine, a_job())
        given = Relations(parent=parent.definition.id, tenant="Zoë", weight=3)
        new, _ = await opened(engine, 0, then=THEN._replace(relations=given))
        await engine.seal_batch(new.id)
        (job,) = await fan_ins(engine)
        assert job.definition.relations == given._replace(fan_in_of=new.id)
        assert (await engine.find(JobFilter(parent=parent.definition.id))).jobs == (job,)

    async def test_another_batch_with_the_id_of_a_removed_one_has_its_own_fan_in_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        kept = THEN._replace(policy=Policy(retention=Retention(completed=micros("90d"))))
        new, _ = await opened(engine, 0, then=kept)
        await engine.seal_batch(new.id)
        session = await a_session(engine)
        await end(engine, await claim_one(engine, session, Demand(SERVICE, ("report",), 1)))
        clock.advance("31d")
        await engine.prune(100)
        assert await engine.batch(new.id) is None
        again = new._replace(then=kept._replace(id=a_job_id()))
        await engine.open_batch(again)
        await engine.seal_batch(again.id)
        first, second = await fan_ins(engine)
        assert (first.head.state, second.head.state) == (State.COMPLETED, State.PENDING)

    async def test_the_fan_in_job_belongs_to_its_tenant(self, engine: Engine) -> None:
        then = THEN._replace(relations=Relations(tenant="acme", weight=3))
        new, _ = await opened(engine, 0, then=then)
        assert (await status(engine, new)).batch.new == new
        await engine.seal_batch(new.id)
        (job,) = await fan_ins(engine)
        assert job.definition.relations == Relations(tenant="acme", weight=3, fan_in_of=new.id)
        taken = await claim_one(engine, await a_session(engine), Demand(SERVICE, ("report",), 1))
        assert taken.definition == job.definition

    async def test_an_open_batch_never_fires(self, engine: Engine) -> None:
        new, (member,) = await opened(engine, 1)
        await settle(engine, member, Cancel())
        assert await engine.finish_batches(10) == 0
        assert (await status(engine, new)).batch.state == "open"
        assert await fan_ins(engine) == []

    async def test_an_empty_batch_fires_when_it_is_sealed(self, engine: Engine) -> None:
        new, _ = await opened(engine, 0)
        sealed = await engine.seal_batch(new.id)
        assert sealed is not None
        assert sealed.state == "finished"
        assert len(await fan_ins(engine)) == 1
        assert await engine.seal_batch(new.id) == sealed
        assert len(await fan_ins(engine)) == 1

    async def test_a_batch_without_a_fan_in_job_just_finishes(self, engine: Engine) -> None:
        new, (member,) = await opened(engine, 1, then=None)
        await engine.seal_batch(new.id)
        await settle(engine, member, Cancel())
        batch = (await status(engine, new)).batch
        assert (batch.state, batch.fan_in) == ("finished", None)

    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED])
    async def test_a_batch_may_fire_only_on_success(self, engine: Engine, state: State) -> None:
        new, _ = await opened(engine, 2, fire_on="success")
        await engine.seal_batch(new.id)
        first, last = await claim(engine, await a_session(engine))
        await end(engine, first, state)
        await end(engine, last)
        batch = (await status(engine, new)).batch
        assert (batch.state, batch.succeeded) == ("finished", state is State.COMPLETED)
        assert len(await fan_ins(engine)) == (state is State.COMPLETED)

    async def test_members_that_end_in_one_call_fire_once(self, engine: Engine) -> None:
        new, _ = await opened(engine, 5)
        other, _ = await opened(engine, 5)
        await engine.seal_batch(new.id)
        await engine.seal_batch(other.id)
        taken = await claim(engine, await a_session(engine))
        await engine.commit([await decided(engine, e, Complete(fence_of(e))) for e in taken])
        followed = [each.definition.relations for each in await fan_ins(engine)]
        assert followed == [Relations(fan_in_of=new.id), Relations(fan_in_of=other.id)]

    async def test_what_happens_to_a_finished_member_later_fires_nothing(
        self, engine: Engine
    ) -> None:
        new, _ = await opened(engine, 2)
        await engine.seal_batch(new.id)
        session = await a_session(engine)
        first, second = await claim(engine, session)
        dead = await end(engine, first, State.DEAD)
        await settle(engine, dead, Replay())
        assert (await status(engine, new)).finished == 1
        await control.clone(engine, dead.definition.id)
        await end(engine, second, State.DEAD)
        assert len(await fan_ins(engine)) == 1
        again, _clone = await claim(engine, session)
        dead = await end(engine, again, State.DEAD)
        await settle(engine, dead, Dismiss())
        assert len(await fan_ins(engine)) == 1
        counts = {State.DEAD: 1, State.DISMISSED: 1}
        assert (await status(engine, new)).counts == counts

    async def test_a_retry_that_succeeds_makes_no_batch_successful(self, engine: Engine) -> None:
        new, _ = await opened(engine, 2, fire_on="success")
        await engine.seal_batch(new.id)
        session = await a_session(engine)
        first, last = await claim(engine, session)
        dead = await end(engine, first, State.DEAD)
        await settle(engine, dead, Replay())
        (again,) = await claim(engine, session)
        ends = [await decided(engine, e, Complete(fence_of(e))) for e in (again, last)]
        await engine.commit(ends)
        assert (await status(engine, new)).batch.succeeded is False
        assert await fan_ins(engine) == []

    async def test_a_retry_that_fails_makes_no_batch_a_failed_one(self, engine: Engine) -> None:
        new, _ = await opened(engine, 2, fire_on="success")
        await engine.seal_batch(new.id)
        session = await a_session(engine)
        first, last = await claim(engine, session)
        partial = await settle(engine, first, complete(first, item_errors=1))
        await settle(engine, partial, commands.RetryItems("ann"))
        (again,) = await claim(engine, session)
        await end(engine, again, State.FAILED)
        for _ in range(3):
            assert await engine.finish_batches(9) == 0
        await end(engine, last)
        assert (await status(engine, new)).batch.succeeded is True
        assert len(await fan_ins(engine)) == 1

    async def test_a_retry_of_an_attempt_is_no_end(self, engine: Engine) -> None:
        new = a_batch()
        await engine.open_batch(new)
        again = Policy(retry=Retry.fixed(0, attempts=2))
        await accept_one(engine, member_of(new, policy=again))
        await engine.seal_batch(new.id)
        session = await a_session(engine)
        taken = await claim_one(engine, session)
        await settle(engine, taken, Fail(fence_of(taken), BOOM))
        assert (await status(engine, new)).finished == 0
        await end(engine, await claim_one(engine, session))
        assert len(await fan_ins(engine)) == 1

    async def test_opening_a_batch_again_changes_nothing(self, engine: Engine) -> None:
        new, _ = await opened(engine, 1)
        assert await engine.open_batch(new._replace(name="other")) == (
            (await status(engine, new)).batch
        )
        assert (await status(engine, new)).total == 1

    async def test_unknown_batches_are_not_found(self, engine: Engine) -> None:
        assert await engine.seal_batch("no") is None
        assert await engine.cancel_batch("no", ANN) is None
        assert await engine.batch("no") is None
        assert await engine.batch_statuses(["no"]) == [None]
        assert await engine.members("no") == []

    async def test_members_are_read_page_by_page(self, engine: Engine) -> None:
        new, members = await opened(engine, 3)
        taken = await claim_one(engine, await a_session(engine))
        ended = await end(engine, taken)
        page = await engine.members(new.id, 0, 2)
        assert page[0] == (ended, "1")
        assert [each.record for each in page] == [ended, members[1]]
        rest = await engine.members(new.id, page[-1].record.definition.row, 2)
        assert rest == [(members[2], None)]

    async def test_batches_are_listed_by_state_newest_first(self, engine: Engine) -> None:
        first, _ = await opened(engine, 0)
        second, _ = await opened(engine, 1)
        third, _ = await opened(engine, 1)
        await engine.seal_batch(first.id)
        await engine.seal_batch(second.id)
        listed = await engine.batches(BatchFilter())
        assert [each.new.id for each in listed] == [third.id, second.id, first.id]
        assert [each.state for each in listed] == ["open", "sealed", "finished"]
        page = await engine.batches(BatchFilter(), after=listed[0].row, limit=1)
        assert page == [listed[1]]
        assert await engine.batches(BatchFilter("sealed")) == [listed[1]]

    async def test_batches_are_listed_by_age(self, engine: Engine, clock: ManualClock) -> None:
        for _ in range(2):
            await opened(engine, 0)
        old = await engine.batches(BatchFilter())
        clock.advance("1s")
        moment = clock.now()
        await opened(engine, 1)
        await engine.seal_batch(old[1].new.id)
        assert await engine.batches(BatchFilter("open", moment)) == old[:1]
        assert len(await engine.batches(BatchFilter(opened_before=moment))) == len(old)

    async def test_statuses_are_answered_in_the_order_of_the_question(self, engine: Engine) -> None:
        outer, _ = await opened(engine, 0)
        inner, _ = await opened(engine, 2, parent=outer.id)
        first, missing, last = await engine.batch_statuses([inner.id, "no", outer.id])
        assert (first, missing, last) == (
            await status(engine, inner), None, await status(engine, outer),
        )  # fmt: skip
        assert first is not None
        assert last is not None
        assert (first.total, last.total) == (2, 0)
        assert last.children == (first.batch,)


class TestStopping(EngineSuite):
    """Cancelled batches, and batches whose failure cancels the rest."""

    async def test_a_cancelled_batch_fires_nothing_and_cancels_its_members(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new, (_, waiting) = await opened(engine, 2)
        taken = await claim_one(engine, await a_session(engine))
        batch = await engine.cancel_batch(new.id, ANN)
        assert batch is not None
        assert (batch.state, batch.finished_at) == ("cancelled", None)
        assert await engine.create([member_of(new)]) == [Rejected(Reason.BATCH_CLOSED, None)]
        due = await engine.due("batches", 10)
        assert [each.record for each in due.jobs] == [taken, waiting]
        asked = await settle(engine, taken, Cancel())
        await settle(engine, waiting, Cancel())
        assert (await engine.due("batches", 10)).jobs == ()
        clock.advance("1s")
        await settle(engine, asked, Cancel(force=True))
        batch = (await status(engine, new)).batch
        assert (batch.finished_at, batch.succeeded) == (clock.now(), False)
        assert await fan_ins(engine) == []
        assert await engine.cancel_batch(new.id, ANN) == batch
        (entry,) = await engine.audit(AuditFilter(action="batch"))
        assert (entry.change, entry.by) == (
            ("batch.cancel", new.id, {"state": "open"}, {"state": "cancelled"}), ANN,
        )  # fmt: skip

    async def test_an_empty_batch_is_cancelled_at_once(self, engine: Engine) -> None:
        new, _ = await opened(engine, 0)
        batch = await engine.cancel_batch(new.id, ANN)
        assert batch is not None
        assert batch.finished_at is not None
        assert await fan_ins(engine) == []

    async def test_a_finished_batch_cannot_be_cancelled(self, engine: Engine) -> None:
        new, _ = await opened(engine, 0)
        finished = await engine.seal_batch(new.id)
        assert await engine.cancel_batch(new.id, ANN) == finished
        assert await engine.audit(AuditFilter()) == []

    async def test_a_job_that_was_only_linked_is_not_cancelled(self, engine: Engine) -> None:
        existing = await accept_one(engine, a_job(dedupe="d"))
        new, _ = await opened(engine, 0)
        await engine.create([member_of(new, dedupe="d")])
        batch = await engine.cancel_batch(new.id, ANN)
        assert batch is not None
        assert batch.finished_at is not None
        assert (await engine.due("batches", 10)).jobs == ()
        assert await the(engine, existing.definition.id) == existing

    @pytest.mark.parametrize("state", [State.FAILED, State.DEAD])
    async def test_a_failed_member_may_cancel_the_rest(self, engine: Engine, state: State) -> None:
        new, members = await opened(engine, 3, on_failure="cancel_rest")
        await engine.seal_batch(new.id)
        session = await a_session(engine)
        first = await claim_one(engine, session)
        second = await claim_one(engine, session)
        await end(engine, second)
        assert (await engine.due("batches", 10)).jobs == ()
        await end(engine, first, state)
        due = [each.record for each in (await engine.due("batches", 10)).jobs]
        assert due == members[2:]
        await settle(engine, due[0], Cancel())
        assert len(await fan_ins(engine)) == 1
        assert (await status(engine, new)).batch.succeeded is False

    async def test_a_failed_member_that_runs_again_is_not_cancelled(self, engine: Engine) -> None:
        _, members = await opened(engine, 2, on_failure="cancel_rest")
        failed = await claim_one(engine, await a_session(engine))
        await settle(engine, await end(engine, failed, State.DEAD), Replay())
        due = [each.record for each in (await engine.due("batches", 10)).jobs]
        assert due == members[1:]

    async def test_a_cancelled_member_does_not_cancel_the_rest(self, engine: Engine) -> None:
        _, (first, _) = await opened(engine, 2, on_failure="cancel_rest")
        await settle(engine, first, Cancel())
        assert (await engine.due("batches", 10)).jobs == ()

    async def test_a_failure_in_the_same_commit_stops_only_its_own_batch(
        self, engine: Engine
    ) -> None:
        """Although a member of the other batch was cancelled before, which is no failure."""
        going, (by_hand, *_) = await opened(engine, 3, on_failure="cancel_rest")
        failing, _ = await opened(engine, 2, on_failure="cancel_rest")
        await settle(engine, by_hand, Cancel())
        done, _, failed, left = await claim(engine, await a_session(engine))
        ends = [
            await decided(engine, done, Complete(fence_of(done))),
            await decided(engine, failed, Fail(fence_of(failed), BOOM)),
        ]
        assert await engine.commit(ends) == [Committed()] * 2
        assert [each.record for each in (await engine.due("batches", 10)).jobs] == [left]
        assert (await status(engine, going)).batch.stopping_at is None
        assert (await status(engine, failing)).batch.stopping_at is not None

    async def test_a_failure_in_a_batch_does_not_stop_the_one_around_it(
        self, engine: Engine
    ) -> None:
        """Although another batch inside that one was unsuccessful before."""
        outer, _ = await opened(engine, 1, on_failure="cancel_rest")
        earlier, (member,) = await opened(engine, 1, parent=outer.id, then=None)
        await engine.seal_batch(earlier.id)
        await settle(engine, member, Cancel())
        assert (await status(engine, earlier)).batch.succeeded is False
        await opened(engine, 2, parent=outer.id)
        _, failed, _ = await claim(engine, await a_session(engine))
        await end(engine, failed, State.DEAD)
        assert (await engine.due("batches", 10)).jobs == ()
        assert (await status(engine, outer)).batch.stopping_at is None

    async def test_a_batch_that_continues_cancels_nothing(self, engine: Engine) -> None:
        await opened(engine, 2)
        await end(engine, await claim_one(engine, await a_session(engine)), State.DEAD)
        assert (await engine.due("batches", 10)).jobs == ()


class TestNestedBatches(EngineSuite):
    """A batch in a batch is a part of it until it and its fan-in job have finished."""

    async def test_the_fan_in_job_of_the_inner_batch_is_a_member_of_the_outer_one(
        self, engine: Engine
    ) -> None:
        outer, _ = await opened(engine, 0)
        inner, _ = await opened(engine, 1, parent=outer.id, then=THEN._replace(type=TYPE))
        await engine.seal_batch(inner.id)
        await engine.seal_batch(outer.id)
        session = await a_session(engine)
        await end(engine, await claim_one(engine, session))
        assert await fan_ins(engine) == []
        assert (await status(engine, outer)).counts == {State.PENDING: 1}
        last = await claim_one(engine, session)
        assert last.definition.relations == Relations(batch=outer.id, fan_in_of=inner.id)
        await end(engine, last)
        (job,) = await fan_ins(engine)
        assert job.definition.id == fan_in_id(outer.id, THEN)
        (child,) = (await status(engine, outer)).children
        assert child == (await status(engine, inner)).batch

    async def test_an_outer_batch_waits_for_an_inner_one_without_fan_in(
        self, engine: Engine
    ) -> None:
        outer, _ = await opened(engine, 0, fire_on="success")
        inner, (member,) = await opened(engine, 1, parent=outer.id, then=None)
        await engine.seal_batch(outer.id)
        assert (await status(engine, outer)).batch.state == "sealed"
        await engine.seal_batch(inner.id)
        await settle(engine, member, Cancel())
        batch = (await status(engine, outer)).batch
        assert (batch.state, batch.succeeded) == ("finished", False)
        assert await fan_ins(engine) == []

    async def test_a_closed_batch_takes_no_inner_one(self, engine: Engine) -> None:
        outer, _ = await opened(engine, 0)
        await engine.seal_batch(outer.id)
        assert await engine.open_batch(a_batch(parent=outer.id)) is None
        assert await engine.open_batch(a_batch(parent="no")) is None
        assert len(await engine.batches(BatchFilter())) == 1

    async def test_cancelling_the_outer_batch_cancels_the_inner_one(self, engine: Engine) -> None:
        outer, _ = await opened(engine, 0)
        inner, (member,) = await opened(engine, 1, parent=outer.id)
        await engine.cancel_batch(outer.id, ANN)
        (due,) = (await engine.due("batches", 10)).jobs
        await settle(engine, due.record, Cancel())
        assert due.record == member
        for each in (outer, inner):
            batch: Batch = (await status(engine, each)).batch
            assert (batch.state, batch.finished_at is None) == ("cancelled", False)
        assert await fan_ins(engine) == []
