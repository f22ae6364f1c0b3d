"""Calls of `Jobs.*` while the projection is behind, and while the runtime is closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from nats import errors as nats_errors

from tests.admin.test_jobs_rpc import Caller
from tests.admin.test_lag import LIMIT, locked
from trellis.admin import internal
from trellis.admin.runtime import AdminRuntime
from trellis.core.commands import Complete
from trellis.core.job import JobRecord
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, LogLine, Note
from trellis.testing.builders import a_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept_one, settle, start, the


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - another task does it
            await asyncio.sleep(0.01)


@pytest.fixture
def call(whole_runtime: AdminRuntime, link: Link, subjects: Subjects) -> Caller:
    assert whole_runtime.rpc is not None
    return Caller(link, subjects)


@pytest.fixture
async def known(whole_runtime: AdminRuntime, engine: Engine) -> JobRecord:
    """A job that the projection has."""
    return await accept_one(engine, a_job())


@pytest.fixture
async def stopped(
    whole_runtime: AdminRuntime, known: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AdminRuntime]:
    """The runtime, whose projection stays as it is."""
    assert await whole_runtime.answers.catch_up()
    await asyncio.gather(whole_runtime.jobs.stop(), whole_runtime.state.stop())
    monkeypatch.setattr(internal, "LAG_LIMIT", LIMIT)
    yield whole_runtime
    monkeypatch.undo()


async def test_a_change_is_answered_although_the_projection_stands_still(
    call: Caller, engine: Engine, stopped: AdminRuntime, known: JobRecord
) -> None:
    secret = a_job(payload='{"password":"hunter2"}')
    await accept_one(engine, secret)
    job = (await call("Get", id=secret.id)).body["job"]
    assert (job["state"], job["payload"]) == ("pending", {"password": "**********"})
    for job_id in (secret.id, known.definition.id):
        assert (await call("Cancel", id=job_id)).body["job"]["state"] == "cancelled"
    (listed,) = (await call("List", limit=9)).body["entries"]
    assert (listed["id"], listed["state"]) == (known.definition.id, "pending")


async def test_of_a_job_that_is_too_large_for_a_message_the_newest_lines_are_shown(
    call: Caller, engine: Engine, link: Link
) -> None:
    taken = await start(engine, await a_session(engine), a_job(payload=json.dumps("p" * 100_000)))
    row, fence = taken.definition.row, fence_of(taken)
    for part in range(20):
        lines = [LogLine("info", f"{part * 10 + each:03}" + "x" * 16_000) for each in range(10)]
        await engine.note([Note(row, 1, fence, line) for line in lines])
    for name in ("Get", "Cancel"):
        job = (await call(name, id=taken.definition.id)).body["job"]
        numbers = [int(line["message"][:3]) for line in job["logs"]]
        assert numbers == list(range(200 - len(numbers), 200))
        assert 0 <= link.max_payload - len(json.dumps(job)) < 20_000
        assert len(job["payload"]) == 100_000
    asked = await the(engine, taken.definition.id)
    await settle(engine, asked, Complete(fence, json.dumps("r" * (link.max_payload - 50_000))))
    job = (await call("Get", id=taken.definition.id)).body["job"]
    assert (job["state"], len(job["payload"])) == ("completed", 100_000)
    assert not job.keys() & {"logs", "result"}


async def test_the_last_lines_of_a_long_log_are_shown(call: Caller, engine: Engine) -> None:
    taken = await start(engine, await a_session(engine), a_job())
    lines = [LogLine("info", str(number)) for number in range(1_300)]
    notes = [Note(taken.definition.row, 1, fence_of(taken), line) for line in lines]
    await engine.note(notes)
    job = (await call("Get", id=taken.definition.id)).body["job"]
    assert [line["message"] for line in job["logs"]] == [str(each) for each in range(1_100, 1_300)]


async def test_calls_of_one_verb_do_not_wait_for_each_other(
    call: Caller, engine: Engine, whole_runtime: AdminRuntime, tmp_path: Path
) -> None:
    assert whole_runtime.rpc is not None
    running = whole_runtime.rpc.calls.running
    with locked(tmp_path / "projection.db"):
        record = await accept_one(engine, a_job())
        asked = [asyncio.create_task(call("List", limit=9)) for _ in range(3)]
        await _until(lambda: len(running) == 3)
    for each in await asyncio.gather(*asked):
        assert [job["id"] for job in each.body["entries"]] == [record.definition.id]
    await _until(lambda: not running)


async def test_one_limit_is_for_both_streams(
    stopped: AdminRuntime, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internal, "LAG_LIMIT", 60)
    await accept_one(engine, a_job())
    await a_session(engine)
    for projector in (stopped.jobs, stopped.state):
        projector._wakeup.clear()
    waiting = asyncio.create_task(stopped.answers.catch_up())
    await _until(lambda: stopped.jobs._wakeup.is_set() and stopped.state._wakeup.is_set())
    waiting.cancel()


async def test_a_call_that_is_under_way_when_the_runtime_closes_is_answered(  # noqa: PLR0917
    nats_url: str, link: Link, subjects: Subjects, tables: Engine, engine: Engine, tmp_path: Path
) -> None:
    runtime = AdminRuntime(Link([nats_url]), subjects, tables, engine)
    await runtime.open()
    assert runtime.rpc is not None
    calls = (runtime.rpc.calls, runtime.answers._calls)
    with locked(tmp_path / "projection.db"):
        record = await accept_one(engine, a_job())
        asked = asyncio.create_task(Caller(link, subjects)("List", limit=9))
        counted = asyncio.create_task(engine.find(JobFilter()))
        await _until(lambda: all(each.running for each in calls))
        service = runtime.rpc._service
        assert service is not None
        closing = asyncio.create_task(runtime.close())
        await _until(service.stopped.is_set)
        with pytest.raises(nats_errors.NoRespondersError):
            await link.ask(subjects.rpc("List"), b"{}", 20)
    await closing
    assert [job["id"] for job in (await asked).body["entries"]] == [record.definition.id]
    assert (await counted).jobs == (record,)
