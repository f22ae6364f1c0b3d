"""The worker's log of attempts: one line for each that did not complete, with its traceback."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.worker.faulty import FaultyEngine, eventually
from tests.worker.test_leases import create, record, service_of, state, worker
from trellis import ActiveJob, PerKey, Retry, control
from trellis.core.commands import Cancel, Crash, Expire, LoseLease
from trellis.core.events import EventKind
from trellis.core.job import JobRecord
from trellis.core.states import State
from trellis.engines.memory import MemoryEngine
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept_one, claim_one
from trellis.worker.log import log_settlement


def about_jobs(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "trellis.jobs"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_each_failed_attempt_is_one_line_with_its_traceback(
    caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    async def fail() -> None:
        raise ValueError("no such order")

    def fail_in_thread() -> None:
        raise ValueError("no such order")

    handler = fail if is_async else fail_in_thread
    service = service_of(handler, retry=Retry.fixed("1ms", attempts=2))
    engine = MemoryEngine()
    job_id = await create(engine, service.find(handler.__name__))
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == 2)
    retried, dead = about_jobs(caplog)
    assert (retried.levelname, dead.levelname) == ("WARNING", "ERROR")
    assert dead.getMessage() == (
        f"shop/{handler.__name__} {job_id} attempt 2: ValueError: no such order. The job is dead."
    )
    for line in (retried, dead):
        assert line.exc_text is not None
        assert line.exc_text.startswith("Traceback (most recent call last):\n")
        assert line.exc_text.endswith("ValueError: no such order")
        assert f"in {handler.__name__}" in line.exc_text
        assert "trellis/worker" not in line.exc_text


async def test_a_refused_result_of_a_success_is_one_line_with_a_word_to_search_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    attempts: list[None] = []

    def work() -> None:
        attempts.append(None)
        if len(attempts) == 1:
            begun.set()
            go_on.wait(20)

    service = service_of(work, retry=Retry.fixed("1ms"))
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"))
    async with worker(engine, service):
        await eventually(begun.is_set)
        (session,) = await engine.sessions()
        await engine.close_session(session.id)

        async def is_completed() -> bool:
            return await state(engine, job_id) is State.COMPLETED

        await eventually(is_completed)
        go_on.set()
        await eventually(lambda: len(about_jobs(caplog)) == 3)
    (ended,) = [each for each in caplog.records if each.name == "trellis.worker.renewals"]
    assert f"Session {session.id:016x} was ended by another worker" in ended.getMessage()
    assert f"({job_id})" in ended.getMessage()
    retried, lost, line = sorted(about_jobs(caplog), key=logging.LogRecord.getMessage)
    assert vars(lost)["trellis"]["event"] == "attempt_lost"
    assert "The worker's lease ended. Next try in" in retried.getMessage()
    assert line.getMessage() == (
        f"shop/work {job_id} attempt 1: writeback_stale_attempt: the attempt had ended before, so "
        "its result was ignored. The job is completed."
    )
    assert vars(line)["trellis"]["event"] == "writeback_stale_attempt"


async def lose_lease(engine: FaultyEngine, job: JobRecord) -> None:
    await control.apply(engine, job.definition.id, LoseLease(fence_of(job), stopped=False))


async def force_cancel(engine: FaultyEngine, job: JobRecord) -> None:
    await control.apply(engine, job.definition.id, Cancel(force=True))


async def expire(engine: FaultyEngine, job: JobRecord) -> None:
    deadline = job.definition.deadline_at
    assert deadline is not None
    await control.apply_all(engine, [(job, Expire())], deadline)


async def cut_off(engine: FaultyEngine, job: JobRecord) -> None:
    engine.down = True
    await eventually(lambda: engine.refused_writes > 0)
    engine.down = False


async def wait_for_timeout(engine: FaultyEngine, job: JobRecord) -> None:
    pass


@pytest.mark.parametrize(
    ("end", "options", "after"),
    [
        (lose_lease, {}, State.RETRY),
        (force_cancel, {}, State.CANCELLED),
        (expire, {}, State.EXPIRED),
        (wait_for_timeout, {"timeout": "50ms"}, State.RETRY),
        (cut_off, {"per_key": PerKey("only")}, State.RETRY),
    ],
)
async def test_a_result_after_the_end_of_its_attempt_is_one_line_and_a_note(
    caplog: pytest.LogCaptureFixture,
    end: Callable[[FaultyEngine, JobRecord], Awaitable[None]],
    options: dict[str, Any],
    after: State,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(20)

    service = service_of(work, retry=Retry.fixed("1h"), deadline="1h", **options)
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"))

    async def is_over() -> bool:
        return await state(engine, job_id) is after

    async with worker(engine, service):
        try:
            await eventually(begun.is_set)
            await end(engine, await record(engine, job_id))
            await eventually(is_over)
        finally:
            go_on.set()
        await eventually(lambda: any(map(_is_stale, about_jobs(caplog))))
    (line,) = filter(_is_stale, about_jobs(caplog))
    assert line.getMessage().endswith(f"so its result was ignored. The job is {after}.")
    journal = [event.kind for event in await engine.journal(job_id)]
    assert journal.count(EventKind.STALE_COMPLETION_IGNORED) == 1
    assert await state(engine, job_id) is after


def _is_stale(line: logging.LogRecord) -> bool:
    return "writeback_stale_attempt" in line.getMessage()


async def test_a_handler_that_obeys_its_timeout_leaves_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(job: ActiveJob[None]) -> None:
        begun.set()
        try:
            for _ in job.track(itertools.count()):
                pass
        finally:
            ended.set()

    service = service_of(work, retry=Retry.never(), timeout="50ms")
    engine = MemoryEngine()
    await create(engine, service.find("work"))
    async with worker(engine, service) as supervisor:
        await eventually(ended.is_set)
        await eventually(lambda: not supervisor._attempts.lost and supervisor.settled == 1)
    (line,) = about_jobs(caplog)
    assert "The attempt took longer than 50ms. The job is dead." in line.getMessage()


async def test_a_handler_whose_attempt_was_ended_elsewhere_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    service = service_of(work)
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"))
    async with worker(engine, service) as supervisor:
        await asyncio.wait_for(begun.wait(), 10)
        await force_cancel(engine, await record(engine, job_id))
        await eventually(lambda: not supervisor._attempts.running)
    (line,) = about_jobs(caplog)
    assert line.getMessage() == (
        f"shop/work {job_id} attempt 1: attempt_lost: another process ended the attempt, so its "
        "handler is asked to stop. The job is cancelled."
    )


async def test_a_logged_exception_keeps_its_traceback_in_the_log_of_the_job() -> None:
    async def work(job: ActiveJob[None]) -> None:
        try:
            raise ValueError("x" * 20_000)  # noqa: TRY301 - the handler logs it
        except ValueError:
            logging.getLogger("shop").exception("the order failed")
            job.log.exception("so it failed", order=7)
        job.log.exception("nothing is wrong")  # noqa: LOG004 - it must not fail

    service = service_of(work)
    engine = MemoryEngine()
    job_id = await create(engine, service.find("work"))
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == 1)
    lines = [(line.message, json.loads(line.fields or "{}")) for line in await engine.logs(job_id)]
    assert [message for message, _ in lines] == [
        "the order failed",
        "so it failed",
        "nothing is wrong",
    ]
    (_, captured), (_, written), (_, nothing) = lines
    assert (captured.pop("logger"), written.pop("order"), nothing) == ("shop", 7, {})
    for fields in (captured, written):
        assert fields["exception"].startswith("… (")
        assert fields["exception"].endswith("x" * 100)
        assert len(fields["exception"]) < 9_000


async def test_a_suspect_that_was_due_long_ago_is_said_to_be_tried_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock=clock)
    await engine.open()
    job, session = await accept_one(engine, a_job()), await a_session(engine)
    clock.advance("2m")
    claimed = await claim_one(engine, session)
    crash = Crash(fence_of(claimed), "It was killed.", alone=False, roll=0.0)
    (result,) = await control.apply_all(engine, [(claimed, crash)], clock.now())
    log_settlement(claimed, fence_of(claimed), result)
    assert caplog.messages == [
        f"shop/invoice {job.definition.id} attempt 1: It was killed. Next try in under 1 s."
    ]
