"""What an operator can read and change."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

import trellis
from tests.operations.steps import ended
from trellis import ConfigurationError, Operator, State
from trellis.core.commands import Fail
from trellis.core.durations import SECOND, micros
from trellis.core.job import Failure
from trellis.core.policy import Policy
from trellis.engines.port import Engine
from trellis.engines.values import Item, LogLine, Note, NoteBody, Progress, WorkerInfo
from trellis.errors import (
    CommandRejected,
    DatabaseMissing,
    EngineClosed,
    WaitTimeout,
    WorkerNotFound,
)
from trellis.insight.views import as_json
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.conformance.helpers import a_session, accept_one, settle, start


async def test_reading_a_missing_database_creates_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "none.db"
    with pytest.raises(DatabaseMissing, match=str(missing)):
        async with trellis.connect(f"sqlite:///{missing}"):
            pass
    assert not os.listdir(tmp_path)  # noqa: PTH208 - as the linter wants it in a coroutine


async def test_it_must_be_opened_first(tmp_path: Path) -> None:
    with pytest.raises(EngineClosed, match=r"async with trellis.connect\(...\)"):
        await trellis.connect(f"sqlite:///{tmp_path / 'jobs.db'}").count()


def test_jobs_in_the_memory_of_a_process_cannot_be_reached_from_outside() -> None:
    with pytest.raises(ConfigurationError, match=r"use Operator\(engine\)"):
        trellis.connect("memory://")


def test_a_wrong_filter_is_reported_at_once(jobs: Operator) -> None:
    with pytest.raises(ConfigurationError, match="is not a state of a job"):
        jobs.find(state="broken")


async def test_a_job_is_shown_whole_and_its_secrets_are_not(jobs: Operator, engine: Engine) -> None:
    policy = Policy(secrets=("/payload/card",))
    new = a_job(
        payload='{"order":7,"card":"4111","password":"hunter2"}',
        policy=policy,
        tags=(("tenant", "acme"),),
        deadline_in=60 * SECOND,
    )
    record = await accept_one(engine, new)
    job = await jobs.get(new.id)
    assert job.payload == {"order": 7, "card": "**********", "password": "**********"}
    assert (job.name, job.tags, job.state) == ("shop/invoice", {"tenant": "acme"}, State.PENDING)
    document = json.loads(json.dumps(as_json(job)))
    assert document["created_at"] == "2030-01-01T00:00:00Z"
    assert document["deadline_at"] == "2030-01-01T00:01:00Z"
    assert document["error"] is None
    assert document["trace_id"] == record.definition.context.trace_id


async def test_a_result_is_masked_and_an_error_is_shown(jobs: Operator, engine: Engine) -> None:
    session = await a_session(engine)
    done = await start(engine, session, a_job())
    await settle(engine, done, complete(done, '{"url":"u","token":"t"}'))
    (outcome,) = await jobs.outcomes(done.definition.id)
    assert (outcome.state, outcome.result) == (State.COMPLETED, {"url": "u", "token": "**********"})
    broken = await start(engine, session, a_job())
    error = Failure("exception", "ValueError: boom", "Traceback ...")
    await settle(engine, broken, Fail(fence_of(broken), error, retryable=False))
    job = await jobs.get(broken.definition.id)
    assert job.error is not None
    assert job.error.detail == "Traceback ..."
    assert [each.kind for each in await jobs.journal(job.id)] == ["created", "started", "failed"]
    assert (await jobs.why(job.id)).causes[0].code == "ended"


async def test_what_an_attempt_reports_is_shown(jobs: Operator, engine: Engine) -> None:
    record = await start(engine, await a_session(engine), a_job())
    bodies: list[NoteBody] = [
        Progress(3, 10, "render", "page 3"),
        Item("a", "completed"),
        Item("b", "failed"),
        Item("c", "completed"),
        *(LogLine("info", f"line {number}", '{"api_key":"k"}') for number in range(1200)),
    ]
    definition, head = record
    await engine.note([Note(definition.row, head.claims, fence_of(record), one) for one in bodies])
    said = await jobs.progress(definition.id)
    assert said is not None
    assert (said.current, said.total, said.step) == (3, 10, "render")
    assert said.items == {"completed": 2, "failed": 1}
    lines = [line async for line in jobs.logs(definition.id)]
    assert [line.message for line in lines] == [f"line {number}" for number in range(1200)]
    assert lines[0].fields == {"api_key": "**********"}


async def test_following_a_log_ends_with_the_job(jobs: Operator, engine: Engine) -> None:
    record = await start(engine, await a_session(engine), a_job())
    definition, head = record

    async def say(text: str) -> None:
        body = LogLine("info", text)
        await engine.note([Note(definition.row, head.claims, fence_of(record), body)])

    await say("one")
    seen: list[str] = []
    async for line in jobs.logs(definition.id, follow=True):
        seen.append(line.message)
        if line.message == "one":
            await say("two")
        else:
            await settle(engine, record, complete(record))
    assert seen == ["one", "two"]


async def test_waiting_returns_the_ended_job_or_says_why_it_is_late(
    jobs: Operator, engine: Engine
) -> None:
    record = await start(engine, await a_session(engine), a_job())
    with pytest.raises(WaitTimeout, match=r"is still active after 10ms\. It was claimed"):
        await jobs.wait(record.definition.id, "10ms")
    await settle(engine, record, complete(record))
    assert (await jobs.wait(record.definition.id, "0s")).state is State.COMPLETED


async def test_waiting_notices_an_end_that_comes_later(jobs: Operator, engine: Engine) -> None:
    record = await start(engine, await a_session(engine), a_job())
    waiting = asyncio.create_task(jobs.wait(record.definition.id, "30s"))
    await asyncio.sleep(0)
    await settle(engine, record, complete(record))
    assert (await waiting).state is State.COMPLETED


async def test_one_job_is_cancelled_retried_replayed_dismissed(
    jobs: Operator, engine: Engine
) -> None:
    waiting = await accept_one(engine, a_job())
    assert (await jobs.cancel(waiting.definition.id, "no need")).state is State.CANCELLED
    (failed,) = await ended(engine, State.FAILED)
    assert (await jobs.retry(failed)).state is State.PENDING
    first, second = await ended(engine, State.DEAD, 2)
    assert (await jobs.replay(first)).state is State.PENDING
    assert (await jobs.dismiss(second)).state is State.DISMISSED
    assert (await jobs.journal(second))[-1].data["actor"] == "ann"


async def test_what_the_lifecycle_does_not_allow_is_refused(jobs: Operator, engine: Engine) -> None:
    record = await accept_one(engine, a_job())
    for verb in (jobs.retry, jobs.replay, jobs.dismiss):
        with pytest.raises(CommandRejected, match="not possible for a job that is pending"):
            await verb(record.definition.id)
    with pytest.raises(CommandRejected, match=r"is pending\. Cancel it before deleting it"):
        await jobs.delete(record.definition.id)


async def test_a_refusal_names_the_command_that_fits(jobs: Operator, engine: Engine) -> None:
    (dead,) = await ended(engine, State.DEAD)
    (failed,) = await ended(engine, State.FAILED)
    running = (await start(engine, await a_session(engine), a_job())).definition.id
    stopped = (await accept_one(engine, a_job())).definition.id
    await jobs.cancel(stopped)
    done = await start(engine, await a_session(engine), a_job())
    completed = (await settle(engine, done, complete(done))).definition.id
    for verb, job_id, words in (
        (jobs.retry, dead, f"trellis dlq replay {dead}"),
        (jobs.retry, running, f"trellis jobs wait {running}, or stop it with: trellis jobs cancel"),
        (jobs.retry, stopped, f"trellis jobs clone {stopped}"),
        (jobs.replay, failed, f"trellis jobs retry {failed}"),
        (jobs.cancel, dead, f"trellis dlq dismiss {dead}"),
        (jobs.cancel, completed, "has ended already, so there is nothing to stop"),
        (jobs.dismiss, running, f"trellis jobs cancel {running}"),
    ):
        with pytest.raises(CommandRejected, match=words):
            await verb(job_id)


async def test_asking_a_running_job_to_stop_twice_is_fine(jobs: Operator, engine: Engine) -> None:
    record = await start(engine, await a_session(engine), a_job())
    assert (await jobs.cancel(record.definition.id)).cancel_asked
    assert (await jobs.cancel(record.definition.id)).cancel_asked
    assert (await jobs.find().cancel()).done == 1
    forced = await jobs.cancel(record.definition.id, force=True)
    assert forced.state is State.CANCELLED


async def test_a_clone_is_a_new_job_linked_to_the_old(jobs: Operator, engine: Engine) -> None:
    record = await accept_one(engine, a_job(payload="[1]"))
    clone = await jobs.clone(record.definition.id)
    assert (clone.clone_of, clone.payload, clone.state) == (
        record.definition.id,
        [1],
        State.PENDING,
    )


async def test_workers_are_listed_and_asked_to_exit(jobs: Operator, engine: Engine) -> None:
    details = '{"types":["shop/invoice"],"slots":3}'
    info = WorkerInfo("berlin", "host-1", 42, "0.1.0", details)
    session = await engine.open_session(info, micros("30s"))
    other = await engine.open_session(info._replace(name="paris"), micros("30s"))
    await engine.close_session(other.id)
    (worker,) = await jobs.workers()
    assert (worker.name, worker.state, worker.slots) == ("berlin", "live", 3)
    assert worker.types == ("shop/invoice",)
    assert len(await jobs.workers(ended=True)) == 2
    assert (await jobs.drain(f"{session.id:016x}"[:6])).state == "draining"
    assert (await jobs.drain("berlin")).state == "draining"
    assert [each.state for each in await jobs.workers()] == ["draining"]
    for unknown in ("paris", "zz", ""):
        with pytest.raises(WorkerNotFound, match="See them with: trellis workers"):
            await jobs.drain(unknown)


async def test_locks_are_listed(jobs: Operator, engine: Engine) -> None:
    session = await a_session(engine)
    assert await engine.take_lock("nightly", session) is None
    (lock,) = await jobs.locks()
    assert (lock.name, lock.worker, lock.job_id) == ("nightly", "worker-1", None)


async def test_an_adjustment_without_a_change_is_refused(jobs: Operator, engine: Engine) -> None:
    job_id = (await accept_one(engine, a_job())).definition.id
    with pytest.raises(ConfigurationError, match="Nothing to change was given"):
        await jobs.adjust(job_id, reason="why not")
    with pytest.raises(ConfigurationError, match="Nothing to change was given"):
        await jobs.find().adjust()
    assert [each.kind for each in await engine.journal(job_id)] == ["created"]


async def test_a_reason_that_was_not_given_is_not_recorded(jobs: Operator, engine: Engine) -> None:
    job_id = (await accept_one(engine, a_job())).definition.id
    await jobs.adjust(job_id, priority=1)
    await jobs.cancel(job_id)
    events = await engine.journal(job_id)
    names = [sorted(each.data or {}) for each in events[1:]]
    assert names == [["actor", "priority", "was"], ["actor"]]
