"""Following goes on while the engine is away, with one watch, and ends when it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from trellis import Operator
from trellis.core.job import JobId, JobRecord
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import Loaded, LogLine, Note, Topic
from trellis.errors import (
    EngineClosed,
    EngineError,
    EngineUnavailable,
    JobNotFound,
    OutcomeUnknown,
)
from trellis.insight.following import Follower
from trellis.testing.builders import a_job, a_job_id, complete, fence_of
from trellis.testing.conformance.helpers import a_session, accept, accept_one, settle, start


class Interrupted(MemoryEngine):
    """Cannot be reached while `outage` is set; counts its watches."""

    def __init__(self) -> None:
        super().__init__()
        self.outage: EngineError | None = None
        self.refused = asyncio.Event()
        self.watches = 0
        self.watched = asyncio.Event()

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        if self.outage is not None:
            self.refused.set()
            raise self.outage
        return await super().load(ids)

    async def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        self.watches += 1
        self.watched.set()
        if self.outage is not None:
            raise self.outage
        async for topic in super().watch(topics):
            yield topic


@pytest.fixture
async def engine() -> AsyncIterator[Interrupted]:
    engine = Interrupted()
    await engine.open()
    yield engine
    await engine.close()


async def end_of(engine: Interrupted, job_id: JobId) -> object:
    return (await Follower(engine).until_ended(job_id)).head.state


async def last_event(engine: Interrupted, job_id: JobId) -> object:
    return [event async for event in Follower(engine).events(job_id, follow=True)][-1].state


async def end_for_an_operator(engine: Interrupted, job_id: JobId) -> object:
    return (await Operator(engine).wait(job_id)).state


async def state_after_the_log(engine: Interrupted, job_id: JobId) -> object:
    lines = [line.message async for line in Operator(engine).logs(job_id, follow=True)]
    assert lines == ["one"]
    (record,) = (await engine.load([job_id])).records
    assert record is not None
    return record.head.state


Follow = Callable[[Interrupted, JobId], Awaitable[object]]
WAYS: list[Follow] = [end_of, last_event, end_for_an_operator, state_after_the_log]


async def running(engine: Interrupted) -> JobRecord:
    """Return a job that runs and has logged one line."""
    record = await start(engine, await a_session(engine), a_job())
    line = LogLine("info", "one")
    await engine.note([Note(record.definition.row, record.head.claims, fence_of(record), line)])
    return record


@pytest.mark.parametrize("outage", [EngineUnavailable, OutcomeUnknown])
@pytest.mark.parametrize("follow", WAYS)
async def test_an_outage_is_logged_once_and_following_resumes(
    engine: Interrupted,
    follow: Follow,
    outage: type[EngineError],
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = await running(engine)
    following = asyncio.ensure_future(follow(engine, record.definition.id))
    await asyncio.wait_for(engine.watched.wait(), 10)
    engine.outage = outage("The server does not answer.")
    for _ in range(3):
        await asyncio.wait_for(engine.refused.wait(), 10)
        engine.refused.clear()
    assert not following.done()
    engine.outage = None
    await settle(engine, record, complete(record))
    assert await asyncio.wait_for(following, 10) == "completed"
    (message,) = (record.getMessage() for record in caplog.records)
    assert message == (
        "The engine cannot be reached; following jobs continues when it answers: "
        "The server does not answer."
    )


@pytest.mark.parametrize("follow", WAYS)
async def test_a_closed_engine_ends_following(engine: Interrupted, follow: Follow) -> None:
    record = await running(engine)
    engine.outage = EngineClosed("The engine is closed.")
    with pytest.raises(EngineClosed):
        await asyncio.wait_for(asyncio.ensure_future(follow(engine, record.definition.id)), 10)


@pytest.mark.parametrize("follow", WAYS)
async def test_a_job_that_is_not_there_cannot_be_followed(
    engine: Interrupted, follow: Follow
) -> None:
    with pytest.raises(JobNotFound, match="There is no job"):
        await asyncio.wait_for(asyncio.ensure_future(follow(engine, a_job_id())), 10)


async def test_a_watch_that_breaks_is_opened_again(
    engine: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.insight.following._LONGEST", 0)
    record = await accept_one(engine, a_job())
    engine.outage = EngineUnavailable("The server does not answer.")
    waiting = asyncio.ensure_future(end_of(engine, record.definition.id))
    await asyncio.wait_for(engine.watched.wait(), 10)
    engine.outage = None
    engine.watched.clear()
    await asyncio.wait_for(engine.watched.wait(), 10)
    assert engine.watches > 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_waiters_and_readers_share_one_watch_which_ends_with_the_last(
    engine: Interrupted,
) -> None:
    follower = Follower(engine)
    records = await accept(engine, *(a_job() for _ in range(5)))
    ids = [record.definition.id for record in records]

    async def read(job_id: JobId) -> None:
        assert [event.kind async for event in follower.events(job_id, follow=True)][-1] == (
            "cancelled"
        )

    tasks = [asyncio.create_task(follower.until_ended(job_id)) for job_id in ids]
    readers = [asyncio.create_task(read(job_id)) for job_id in ids]
    while len(follower._watch._followers) < 6:  # noqa: ASYNC110 - a signal that all follow
        await asyncio.sleep(0)
    await (await Operator(engine).pick(ids)).cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, *readers), 10)
    async with asyncio.timeout(10):
        while follower._watch._task is not None:  # noqa: ASYNC110 - a signal that it has ended
            await asyncio.sleep(0)
    assert engine.watches == 1


async def test_closing_a_follower_ends_its_waits_and_its_watch(engine: Interrupted) -> None:
    follower = Follower(engine)
    record = await accept_one(engine, a_job())
    waiting = asyncio.create_task(follower.until_ended(record.definition.id))
    await asyncio.wait_for(engine.watched.wait(), 10)
    await follower.close()
    with pytest.raises(EngineClosed, match="was closed while a job was awaited"):
        await waiting
    assert (follower._watch._task, follower._watch._followers) == (None, set())
