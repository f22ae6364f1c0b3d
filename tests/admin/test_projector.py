"""The projection follows the streams, whoever writes it and whatever happens between two pages."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from tests.admin.conftest import Serving
from trellis.admin.messages import Messages
from trellis.admin.runtime import AdminRuntime
from trellis.core.commands import Cancel, Complete, Fail
from trellis.core.job import Failure
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.writing import BATCH
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Begun, JobFilter, LogEntry, LogLine, Note, Progress
from trellis.errors import EngineUnavailable
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, a_job_id, fence_of
from trellis.testing.conformance.helpers import a_session, accept, accept_one, settle, start, the

BOOM = Failure("exception", "boom")


async def _some_lives(engine: Engine, clock: ManualClock) -> None:
    """Store jobs that wait, run, retry, have ended."""
    session, kind = await a_session(engine), f"kind-{secrets.token_hex(4)}"
    done = await start(
        engine, session, a_job(type=kind, tags=(("a", "b"),), idempotency_key=a_job_id())
    )
    clock.advance("1s")
    notes = (Begun(clock.now()), Progress(1, 2), LogLine("info", "line"))
    row, fence = done.definition.row, fence_of(done)
    await engine.note([Note(row, done.head.claims, fence, body) for body in notes])
    await settle(engine, done, Complete(fence, '{"n": 1}', started_at=clock.now()))
    again = await start(engine, session, a_job(type=kind))
    await settle(engine, again, Fail(fence_of(again), BOOM))
    await settle(engine, await accept_one(engine, a_job(type=kind)), Cancel("no"))
    await start(engine, session, a_job(type=kind))
    await accept(
        engine, a_job(type=kind), a_job(type=kind, priority=2), a_job(type=kind, deadline_in=1)
    )


async def _same(engine: Engine, tables: Engine) -> None:
    page = await tables.find(JobFilter(), limit=100)
    loaded = await engine.load([each.definition.id for each in page.jobs])
    assert loaded.records == page.jobs
    for each in page.jobs:
        job_id = each.definition.id
        assert await tables.journal(job_id) == await engine.journal(job_id)
        assert await tables.outcomes(job_id) == await engine.outcomes(job_id)


async def test_the_projection_has_what_the_stream_has(
    engine: Engine, runtime: AdminRuntime, tables: Engine, clock: ManualClock
) -> None:
    await _some_lives(engine, clock)
    assert await runtime.answers.catch_up()
    assert (await tables.count(JobFilter())).total == 7
    await _same(engine, tables)


async def test_reads_through_the_runtime_see_what_was_just_stored(
    engine: Engine, runtime: AdminRuntime
) -> None:
    for number in range(1, 20):
        await accept_one(engine, a_job())
        assert (await engine.count(JobFilter())).total == number
    first = (await engine.find(JobFilter(), limit=1)).jobs[0]
    await settle(engine, await the(engine, first.definition.id), Cancel())
    assert (await engine.count(JobFilter(), "state")).groups == {"cancelled": 1, "pending": 18}


async def test_without_a_runtime_a_read_says_what_to_start(engine: Engine) -> None:
    await accept_one(engine, a_job())
    with pytest.raises(EngineUnavailable, match="trellis jobs serve"):
        await engine.find(JobFilter())


async def test_two_runtimes_on_one_projection_store_everything_once(
    engine: Engine,
    runtime: AdminRuntime,
    tables: Engine,
    serving: Serving,
    clock: ManualClock,
) -> None:
    async with serving(tables) as other:
        for _ in range(5):
            await _some_lives(engine, clock)
        await asyncio.gather(runtime.answers.catch_up(), other.answers.catch_up())
    await _same(engine, tables)
    numbers = [each.number for each in await _all_logs(tables)]
    assert len(numbers) == len(set(numbers)) == 5


async def test_a_page_that_is_stored_is_not_stored_again(  # noqa: PLR0917 - fixtures
    engine: Engine,
    runtime: AdminRuntime,
    tables: Engine,
    subjects: Subjects,
    link: Link,
    clock: ManualClock,
) -> None:
    await _some_lives(engine, clock)
    assert await runtime.answers.catch_up()
    place = await runtime.projection.place(subjects.jobs)
    assert place is not None
    page = await link.following(subjects.jobs, ">", 1)
    changes = await Messages(runtime.store).changes(page)
    before = place._replace(sequence=0)
    assert not await runtime.projection.project(subjects.jobs, before, place, changes)
    assert len(await _all_logs(tables)) == 1
    await _same(engine, tables)


async def _all_logs(tables: Engine) -> list[LogEntry]:
    jobs = (await tables.find(JobFilter(), limit=100)).jobs
    return [line for each in jobs for line in await tables.logs(each.definition.id)]


async def test_a_runtime_continues_where_the_last_one_ended(
    engine: Engine,
    tables: Engine,
    serving: Serving,
    clock: ManualClock,
) -> None:
    for _ in range(3):
        await _some_lives(engine, clock)
        async with serving(tables) as runtime:
            assert await runtime.answers.catch_up()
    await _same(engine, tables)
    assert (await tables.count(JobFilter())).total == 21


async def test_a_projection_from_the_beginning_equals_one_that_followed(  # noqa: PLR0917 - fixtures
    engine: Engine,
    runtime: AdminRuntime,
    tables: Engine,
    serving: Serving,
    clock: ManualClock,
    tmp_path: Path,
) -> None:
    for _ in range(3):
        await _some_lives(engine, clock)
        assert await runtime.answers.catch_up()
    followed = (await tables.find(JobFilter(), limit=100)).jobs
    fresh = SqliteEngine(tmp_path / "fresh.db", clock=clock)
    await fresh.open()
    async with serving(fresh) as late:
        assert await late.answers.catch_up()
    assert (await fresh.find(JobFilter(), limit=100)).jobs == followed
    await fresh.close()


async def test_a_request_that_cannot_be_read_is_refused(
    runtime: AdminRuntime, subjects: Subjects, link: Link
) -> None:
    for verb, body, code in (("find", b"[]", "400"), ("create", b"{}", "404")):
        answer = await link.ask(subjects.internal(verb), body, 5)
        assert (answer.headers or {})["Nats-Service-Error-Code"] == code


@pytest.mark.parametrize("before", [0, 1, 7])
async def test_the_largest_write_is_in_one_page(
    runtime: AdminRuntime, link: Link, subjects: Subjects, before: int
) -> None:
    name = subjects.own("member", "none", "none", "linked")
    for _ in range(before):
        await link.write(Message(name, b"true"))
    assert await runtime.answers.catch_up()
    known = (await runtime.jobs._end()).sequence
    await runtime.jobs.stop()
    await link.write(*(Message(name, b"true") for _ in range(BATCH)))
    await link.write(Message(name, b"true"))
    ends: list[int] = []
    runtime.jobs._is_stopped = False
    while await runtime.jobs.step():
        place = await runtime.projection.place(subjects.jobs)
        assert place is not None
        ends.append(place.sequence)
    assert set(ends) <= {known + BATCH, known + BATCH + 1}
