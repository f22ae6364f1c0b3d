"""What an operator can see."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

import trellis
from trellis import AmbiguousId, ConfigurationError, JobNotFound, Operator, State
from trellis.core.commands import Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobId
from trellis.core.policy import Policy
from trellis.engines.port import Engine
from trellis.engines.values import Item, LogLine, Note, NoteBody, Progress
from trellis.errors import DatabaseMissing, EngineClosed, WaitTimeout
from trellis.insight.views import as_json
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import a_session, accept, accept_one, settle, start


async def test_looking_where_nothing_is_creates_nothing(tmp_path: Path) -> None:
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


async def test_a_filter_is_iterated_over_counted_and_paged(jobs: Operator, engine: Engine) -> None:
    made = await accept(engine, *(a_job(type=name) for name in ("a", "b") * 150))
    wanted = [each.definition.id for each in reversed(made) if each.definition.type == "a"]
    found = jobs.find(type="a", state="pending")
    assert [job.id async for job in found] == wanted
    assert await found.count() == 150
    first = await found.page(limit=100)
    second = await found.page(after=first.next_after, limit=100)
    assert [job.id for job in (*first.jobs, *second.jobs)] == wanted
    assert second.next_after is None
    assert await jobs.count() == {"pending": 300}
    assert await jobs.count("type", type="b") == {"b": 150}


async def test_a_span_means_the_same_moment_on_every_page(
    jobs: Operator, engine: Engine, clock: ManualClock
) -> None:
    await accept_one(engine, a_job())
    found = jobs.find(since="1m")
    assert await found.count() == 1
    clock.advance("2m")
    assert await found.count() == 1
    assert await jobs.find(since="1m").count() == 0


def test_a_wrong_filter_is_told_at_once(jobs: Operator) -> None:
    with pytest.raises(ConfigurationError, match="is no state of a job"):
        jobs.find(state="broken")


async def test_the_beginning_of_an_id_will_do_while_it_is_unique(
    jobs: Operator, engine: Engine
) -> None:
    first = JobId("01JCAAAAAAAAAAAAAAAAAAAAAA")
    await accept(engine, a_job(id=first), a_job(id=JobId("01JCBBBBBBBBBBBBBBBBBBBBBB")))
    assert (await jobs.get("01jca")).id == first
    with pytest.raises(AmbiguousId, match=r"several ids: 01JCBB.*, 01JCAA.*Write more") as refusal:
        await jobs.get("01JC")
    assert len(refusal.value.candidates) == 2
    with pytest.raises(JobNotFound, match="No job has an id that begins or ends with '01K'"):
        await jobs.get("01K")
    with pytest.raises(JobNotFound, match="never created here"):
        await jobs.get("01JCZZZZZZZZZZZZZZZZZZZZZZ")
    with pytest.raises(JobNotFound):
        await jobs.get("")


async def test_the_end_of_an_id_will_do_while_no_other_begins_or_ends_so(
    jobs: Operator, engine: Engine
) -> None:
    first = JobId("01JCAAAAAAAAAAAAAAAAAAAAX7")
    await accept(
        engine,
        a_job(id=first),
        a_job(id=JobId("01JCAAAAAAAAAAAAAAAAAAAAX8")),
        a_job(id=JobId("X8JCAAAAAAAAAAAAAAAAAAAAAA")),
    )
    assert (await jobs.get("x7")).id == first
    assert (await jobs.get("01JCAAAAAAAAAAAAAAAAAAAAX7")).id == first
    with pytest.raises(AmbiguousId, match="'X8' is the beginning or the end of several") as refusal:
        await jobs.get("X8")
    assert len(refusal.value.candidates) == 2


async def test_a_removed_job_is_told_from_one_that_never_was(
    jobs: Operator, engine: Engine
) -> None:
    record = await accept_one(engine, a_job())
    await jobs.cancel(record.definition.id)
    await jobs.delete(record.definition.id)
    with pytest.raises(JobNotFound, match="was here and has been removed"):
        await jobs.get(record.definition.id)


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


async def test_what_an_attempt_says_is_shown(jobs: Operator, engine: Engine) -> None:
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


async def test_waiting_hears_of_an_end_that_comes_meanwhile(jobs: Operator, engine: Engine) -> None:
    record = await start(engine, await a_session(engine), a_job())
    waiting = asyncio.create_task(jobs.wait(record.definition.id, "30s"))
    await asyncio.sleep(0)
    await settle(engine, record, complete(record))
    assert (await waiting).state is State.COMPLETED
