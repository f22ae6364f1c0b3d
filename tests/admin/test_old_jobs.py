"""Jobs of some age are read from the projection, as they are in the stream."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from tests.admin.conftest import Serving
from trellis.admin.runtime import AdminRuntime
from trellis.core.commands import Adjust, Cancel, Command, Complete, Dismiss, Fail, Retry
from trellis.core.followups import ulid
from trellis.core.job import Failure, Fence, JobId, JobRecord, Prerequisite
from trellis.core.policy import Hook, Policy
from trellis.core.retry import Retry as RetryPolicy
from trellis.engines.contracts import DeclaredType
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.link import Expect, Link, Message, Written
from trellis.engines.jetstream.message import name_of
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.errors import Unreadable
from trellis.testing import ManualClock
from trellis.testing.builders import QUEUE, SERVICE, TYPE, a_job, a_keyed_job, fence_of
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    head,
    settle,
    start,
    the,
    were_removed,
)

BOOM = Failure("exception", "boom")
LETTERS = Policy(retry=RetryPolicy(attempts=1))
ONE = Policy(retry=RetryPolicy(attempts=1), dead_letters=False)


@pytest.fixture
async def reader(
    nats_url: str, subjects: Subjects, clock: ManualClock
) -> AsyncIterator[JetStreamEngine]:
    """An engine that has read no job of the stream; by its clock all jobs are old."""
    engine = JetStreamEngine(nats_url, prefix=subjects.prefix, clock=clock)
    await engine.open()
    yield engine
    await engine.close()


def in_stream(reader: JetStreamEngine, record: JobRecord) -> bool:
    """Return whether an engine has read a job of the stream."""
    return reader._seen.has(record.definition.id)


async def read_twice(runtime: AdminRuntime, reader: JetStreamEngine, *records: JobRecord) -> None:
    """Check that jobs are the same in the stream and in the projection."""
    ids = [each.definition.id for each in records]
    assert await runtime.answers.catch_up()
    loaded = await reader.load(ids)
    assert not any(in_stream(reader, each) for each in records)
    stored = await reader._store.find_many(ids)
    assert loaded.records == tuple(getattr(each, "record", None) for each in stored)
    assert all(each.definition.created_at <= loaded.now for each in records)


async def _ended(engine: Engine) -> list[JobRecord]:
    """Return jobs that have ended in all ways."""
    session = await a_session(engine, "10m")

    async def end(command: Callable[[Fence], Command], **parts: Any) -> JobRecord:  # noqa: ANN401
        running = await start(engine, session, a_job(**parts))
        return await settle(engine, running, command(fence_of(running)))

    dismissed = await end(lambda fence: Fail(fence, BOOM), policy=LETTERS)
    again = await end(lambda fence: Fail(fence, BOOM), policy=ONE)
    return [
        await end(lambda fence: Complete(fence, result="[1]")),
        await end(lambda _: Cancel("enough", force=True)),
        await end(lambda fence: Fail(fence, BOOM), policy=LETTERS),
        await end(lambda fence: Fail(fence, BOOM), policy=ONE),
        await settle(engine, dismissed, Dismiss()),
        await settle(engine, again, Retry()),
    ]


async def test_jobs_in_every_state_are_the_same(
    engine: Engine, runtime: AdminRuntime, reader: JetStreamEngine
) -> None:
    ended = await _ended(engine)
    session = await a_session(engine, "10m")
    running = await start(engine, session, a_job(type="refund"))
    retried = await start(engine, session, a_job(type="refund"))
    retried = await settle(engine, retried, Fail(fence_of(retried), BOOM))
    waiting = await accept(
        engine,
        a_job(tags=(("a", "1"),), priority=3, deadline_in=60_000_000, config='{"x":1}'),
        a_keyed_job("one", IN_TURN),
        a_keyed_job("one", IN_TURN),
    )
    adjusted = await settle(engine, waiting[0], Adjust(priority=9))
    await read_twice(runtime, reader, *ended, running, retried, adjusted, *waiting[1:])


async def test_a_payload_that_was_handed_on_is_the_same(
    engine: Engine, runtime: AdminRuntime, reader: JetStreamEngine
) -> None:
    session = await a_session(engine, "10m")
    first = await start(engine, session, a_job())
    after = (Prerequisite(first.definition.id),)
    second = await accept_one(engine, a_job(type="refund", after=after))
    await settle(engine, first, Complete(fence_of(first), result='{"from":"first"}'))
    await read_twice(runtime, reader, first, second)


async def test_hooks_that_workers_declare_since_are_there(
    engine: Engine, runtime: AdminRuntime, reader: JetStreamEngine
) -> None:
    waiting = await accept_one(engine, a_job())
    hooks = (Hook("failure", "alert", "alert"),)
    await engine.declare_types([DeclaredType(SERVICE, TYPE, QUEUE, Policy(hooks=hooks))])
    (loaded,) = (await reader.load([waiting.definition.id])).records
    assert loaded is not None
    assert loaded.definition.policy.hooks == hooks


async def test_new_jobs_and_jobs_that_were_read_before_are_read_in_the_stream(
    engine: Engine, runtime: AdminRuntime, reader: JetStreamEngine, tmp_path: Path,
    clock: ManualClock,
) -> None:  # fmt: skip
    new, old = await accept(engine, a_job(id=JobId(ulid(clock.now(), 1))), a_job())
    session = await a_session(reader)
    running = await start(cast("Engine", reader), session, a_job(type="refund"))
    assert await runtime.answers.catch_up()
    with closing(sqlite3.connect(tmp_path / "projection.db", isolation_level=None)) as file:
        file.execute("update trellis_queue set attempt = attempt + 7")
    attempts = [(await head(cast("Engine", reader), each)).attempt for each in (new, running, old)]
    assert attempts == [0, 1, 7]


async def test_a_projection_that_is_behind_is_not_used(
    engine: Engine, runtime: AdminRuntime, reader: JetStreamEngine
) -> None:
    known = await accept_one(engine, a_job())
    assert await runtime.answers.catch_up()
    await runtime.jobs.stop()
    cancelled = await settle(engine, known, Cancel())
    assert await the(reader, known.definition.id) == cancelled
    assert in_stream(reader, known)


async def test_a_job_whose_last_event_cannot_be_read_is_not_as_it_was_before(
    engine: Engine, runtime: AdminRuntime, reader: JetStreamEngine, link: Link, subjects: Subjects
) -> None:
    known = await accept_one(engine, a_job())
    job = name_of(known.definition)
    expect = Expect(known.definition.row, subjects.fence(job))
    assert isinstance(
        await link.write(Message(subjects.event(job, "cancelled"), b"{}", {}, expect)), Written
    )
    assert await runtime.answers.catch_up()
    with pytest.raises(Unreadable):
        await reader.load([job.id])


async def test_a_job_of_another_service_with_the_same_id_changes_nothing(
    engine: Engine, runtime: AdminRuntime, reader: JetStreamEngine, link: Link, subjects: Subjects
) -> None:
    known = await accept_one(engine, a_job())
    other = name_of(known.definition)._replace(service="mail")
    assert isinstance(await link.write(Message(subjects.event(other, "created"), b"{}")), Written)
    assert await runtime.answers.catch_up()
    assert await the(reader, known.definition.id) == known
    assert in_stream(reader, known)


async def test_without_a_runtime_the_stream_is_read_and_no_runtime_asked_again_at_once(
    engine: Engine, reader: JetStreamEngine, serving: Serving, tables: Engine
) -> None:
    jobs = await accept(engine, a_job(), a_job(), a_job())
    assert await the(reader, jobs[0].definition.id) == jobs[0]
    assert in_stream(reader, jobs[0])
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
        assert await the(reader, jobs[1].definition.id) == jobs[1]
        assert in_stream(reader, jobs[1])
        reader._old_jobs._asked_from = 0.0
        assert await the(reader, jobs[2].definition.id) == jobs[2]
        assert not in_stream(reader, jobs[2])


async def test_a_removed_job_and_one_that_never_was_are_told_apart(
    engine: Engine, runtime: AdminRuntime, reader: JetStreamEngine
) -> None:
    gone, never = await accept_one(engine, a_job()), a_job()
    assert await runtime.answers.catch_up()
    await runtime.jobs.stop()  # it knows one event, and one message is left of the job
    gone = await settle(engine, gone, Cancel())
    ids = gone.definition.id, never.id
    await engine.remove([gone.definition.id])
    assert (await reader.load(ids)).records == (None, None)
    assert await were_removed(cast("Engine", reader), *ids) == [True, False]
