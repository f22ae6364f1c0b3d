"""The worker's log of attempts: one line for each that did not complete, with its traceback."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from tests.worker.faulty import FaultyEngine, eventually
from tests.worker.test_leases import create, service_of, state, worker
from trellis import ActiveJob, Retry
from trellis.core.states import State
from trellis.engines.memory import MemoryEngine


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
        await eventually(lambda: bool(about_jobs(caplog)))
    (line,) = about_jobs(caplog)
    assert line.getMessage() == (
        f"shop/work {job_id} attempt 1: writeback_stale_attempt: the attempt had ended before, so "
        "its result was ignored. The job is completed."
    )
    assert vars(line)["trellis"]["event"] == "writeback_stale_attempt"


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
