"""Facts of jobs that no rule needs: when they changed, their results, and who ran them."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import pytest

from trellis.core.commands import Cancel, Fail, Snooze
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobId, SessionId
from trellis.core.states import State
from trellis.engines.operating import JobFacts, WorkerName
from trellis.engines.port import Engine
from trellis.engines.values import Begun, JobFilter, Note, WorkerInfo
from trellis.testing.builders import a_job, a_job_id, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import accept_one, claim_one, settle, start
from trellis.testing.conformance.suite import EngineSuite

ANN = WorkerName("ann-1", "ann", 4242)
BOB = WorkerName("bob-1", "bob", 77)


async def _session(engine: Engine, who: WorkerName) -> SessionId:
    return (await engine.open_session(WorkerInfo(*who), 30 * SECOND)).id


async def _found(engine: Engine, worker: str) -> list[JobId]:
    await engine.catch_up()
    page = await engine.find(JobFilter(worker=worker))
    assert (await engine.count(JobFilter(worker=worker))).total == len(page.jobs)
    return [record.definition.id for record in page.jobs]


class TestFacts(EngineSuite):
    """Facts follow a job through its life."""

    async def test_facts_follow_a_job_through_its_life(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job())
        job_id = record.definition.id
        await engine.catch_up()
        assert await engine.facts([job_id, a_job_id()]) == {
            job_id: JobFacts(None, clock.now(), None, None, None)
        }
        session = await _session(engine, ANN)
        clock.advance("1s")
        claimed, taken = clock.now(), await claim_one(engine, session)
        clock.advance("1s")
        body = Begun(clock.now())
        await engine.note([Note(taken.definition.row, 1, fence_of(taken), body)])
        await engine.catch_up()
        running = JobFacts(clock.now(), claimed, session, ANN, None)
        assert await engine.facts([job_id]) == {job_id: running}
        clock.advance("1s")
        await settle(engine, taken, complete(taken, '{"ok":1}'))
        await engine.catch_up()
        ended = JobFacts(claimed, clock.now(), session, ANN, '{"ok":1}')
        assert await engine.facts([job_id, job_id]) == {job_id: ended}

    async def test_a_result_and_its_start_are_of_the_latest_outcome(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await _session(engine, ANN), a_job())
        began = clock.now()
        await settle(engine, taken, complete(taken, "7")._replace(started_at=began))
        clock.advance("1s")
        await engine.catch_up()
        facts = await engine.facts([taken.definition.id])
        assert facts[taken.definition.id][0::4] == (began, "7")

    async def test_a_waiting_job_names_the_worker_of_its_last_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        ann, bob = await _session(engine, ANN), await _session(engine, BOB)
        taken = await start(engine, ann, a_job())
        await settle(engine, taken, Snooze(fence_of(taken), SECOND))
        clock.advance("1s")
        again = await claim_one(engine, bob)
        waiting = await settle(engine, again, Snooze(fence_of(again), SECOND))
        assert waiting.head.state is State.RETRY
        await engine.catch_up()
        facts = (await engine.facts([taken.definition.id]))[taken.definition.id]
        assert (facts.session, facts.worker, facts.started_at) == (bob, BOB, None)

    async def test_an_operator_changes_nothing_about_who_ran_a_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await _session(engine, ANN), a_job())
        await settle(engine, taken, Snooze(fence_of(taken), SECOND))
        clock.advance("1h")
        job_id = taken.definition.id
        record = (await engine.load([job_id])).records[0]
        assert record is not None
        await settle(engine, record, Cancel())
        await engine.catch_up()
        facts = (await engine.facts([job_id]))[job_id]
        assert (facts.updated_at, facts.worker) == (clock.now(), ANN)


class TestWhoRanAJob(EngineSuite):
    """Jobs are found and counted by the worker processes that ran them."""

    @pytest.mark.parametrize("word", ["name", "host", "id"])
    async def test_jobs_are_found_by_a_worker_that_has_or_had_an_attempt(
        self, engine: Engine, clock: ManualClock, word: str
    ) -> None:
        ann, bob = await _session(engine, ANN), await _session(engine, BOB)
        both = await start(engine, ann, a_job())
        error = Failure("exception", "boom")
        await settle(engine, both, Fail(fence_of(both), error, delay=SECOND))
        clock.advance("1s")
        both = await claim_one(engine, bob)
        await settle(engine, both, complete(both))
        running = await start(engine, bob, a_job())
        await accept_one(engine, a_job())
        words = {"name": ("ann-1", "bob-1"), "host": ("ann", "bob")}
        of_ann, of_bob = words.get(word, (f"{ann:016x}", f"{bob:016x}"))
        assert await _found(engine, of_ann) == [both.definition.id]
        assert await _found(engine, of_bob) == [running.definition.id, both.definition.id]
        assert await _found(engine, "ann-") == []
        counted = await engine.count(JobFilter(), "worker", "state")
        assert counted.combinations == {
            ("", "pending"): 1,
            ("bob-1", "active"): 1,
            ("bob-1", "completed"): 1,
        }

    async def test_a_worker_is_known_after_its_session_is_removed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        ann, bob = await _session(engine, ANN), await _session(engine, BOB)
        done = await start(engine, ann, a_job())
        await settle(engine, done, complete(done))
        await engine.close_session(ann)
        clock.advance("1d")
        assert await engine.prune(100) == 1
        await engine.catch_up()
        assert [each.id for each in await engine.sessions()] == [bob]
        assert await engine.identify([bob, ann, SessionId(7)]) == {ann: ANN, bob: BOB}
        assert (await engine.facts([done.definition.id]))[done.definition.id].worker == ANN
        assert await _found(engine, "ann-1") == [done.definition.id]
        assert (await engine.count(JobFilter(), "worker")).groups == {"ann-1": 1}

    async def test_its_name_is_kept_as_long_as_a_job_that_is_as_old(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        old = await accept_one(engine, a_job())
        clock.advance("1s")
        ann = await _session(engine, ANN)
        await engine.close_session(ann)
        clock.advance("1s")
        await accept_one(engine, a_job())
        clock.advance("1d")
        assert await engine.prune(100) == 1
        await engine.catch_up()
        assert await engine.identify([ann]) == {ann: ANN}
        await settle(engine, old, Cancel())
        assert await engine.remove([old.definition.id]) == ["removed"]
        await engine.close_session(await _session(engine, BOB))
        clock.advance("1d")
        assert await engine.prune(100) == 1
        await engine.catch_up()
        assert await engine.identify([ann]) == {}
