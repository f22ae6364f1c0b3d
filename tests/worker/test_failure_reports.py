"""Error reporters are called once per failed attempt, after its outcome is stored."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.worker.faulty import eventually
from tests.worker.isolation import surrounded
from trellis import AttemptFailure, Fail, JobDead, JobFailed, Retry, RetryIn, Service, Snooze, State
from trellis.testing import sandbox

NEVER = Retry.never()


@pytest.fixture
def reports(service: Service) -> list[AttemptFailure]:
    found: list[AttemptFailure] = []
    service.on_error(found.append)
    return found


async def test_each_failed_attempt_is_reported_with_what_follows(
    service: Service, reports: list[AttemptFailure]
) -> None:
    @service.job(retry=Retry.fixed("0s", attempts=2))
    def sync(order: int) -> None:
        raise OSError(f"no route for {order}")

    async with service.worker():
        with pytest.raises(JobDead):
            await (await sync.create(7, tags={"tenant": "acme"})).wait("10s")
    first, last = reports
    assert (first.attempt, first.will_retry, first.job.state) == (1, True, State.RETRY)
    assert (last.attempt, last.will_retry, last.job.state) == (2, False, State.DEAD)
    assert isinstance(first.exception, OSError)
    assert (str(first.exception), first.error.code) == ("no route for 7", "exception")
    assert (first.job.name, first.job.payload, first.job.tags) == (
        "shop/sync",
        7,
        {"tenant": "acme"},
    )
    assert first.exception.__traceback__ is not None


async def test_what_is_no_failure_is_not_reported(
    service: Service, reports: list[AttemptFailure]
) -> None:
    answers: list[Any] = [RetryIn("0s"), Snooze("0s"), None]

    @service.job
    async def wait() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    async with service.worker():
        await (await wait.create()).wait("10s")
    assert (answers, reports) == ([], [])


async def test_failures_without_an_exception_are_reported_too(
    service: Service, reports: list[AttemptFailure]
) -> None:
    @service.job(timeout="50ms", retry=NEVER, dead_letters=False)
    async def slow() -> None:
        await asyncio.Event().wait()

    @service.job(dead_letters=False)
    async def refuse() -> None:
        raise Fail("no such order", data={"order": 7})

    async with service.worker():
        for job in (slow, refuse):
            with pytest.raises(JobFailed):
                await (await job.create()).wait("10s")
    timed_out, refused = reports
    assert (timed_out.error.code, timed_out.will_retry) == ("timeout", False)
    assert (str(refused.exception), refused.error.data) == ("no such order", {"order": 7})


async def test_an_attempt_that_maintenance_ends_is_reported_by_its_own_process(
    service: Service, reports: list[AttemptFailure]
) -> None:
    @service.job(activity_timeout="100ms", retry=NEVER)
    async def silent() -> None:
        await asyncio.Event().wait()

    async with service.worker(lease="300ms"):
        with pytest.raises(JobDead):
            await (await silent.create()).wait("20s")
        await eventually(lambda: bool(reports))
    (lost,) = reports
    assert (lost.error.code, lost.attempt, lost.will_retry) == ("lease_lost", 1, False)
    assert lost.error.message == "No log, progress or heartbeat for 100ms."
    assert lost.job.state is State.DEAD


async def test_a_reporter_that_fails_changes_nothing(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[str] = []

    @service.on_error
    def broken(_: AttemptFailure) -> None:
        raise SystemExit(3)

    @service.on_error
    async def works(failure: AttemptFailure) -> None:
        reported.append(failure.job.id)

    @service.job(retry=NEVER, dead_letters=False)
    def work() -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR):
        async with service.worker():
            ref = await work.create()
            with pytest.raises(JobFailed, match="broken"):
                await ref.wait("10s")
    assert reported == [ref.id]
    assert "An error reporter failed; the outcome of job" in caplog.text


async def test_a_failure_in_a_handler_process_is_reported_with_its_stack(tmp_path: Path) -> None:
    app = surrounded.app
    app.connection.point_at(f"sqlite:///{tmp_path / 'jobs.db'}")
    found: list[AttemptFailure] = []
    app.on_error(found.append)
    try:
        async with app, app.worker(concurrency=1):
            with pytest.raises(JobFailed, match="broken there"):
                await (await surrounded.breaks.create(1)).wait("30s")
    finally:
        app._extensions.reporters.clear()
    (failure,) = found
    assert str(failure.exception) == "exception: ValueError: broken there"
    assert "in breaks" in failure.exception.__notes__[0]


def test_a_sandbox_calls_reporters() -> None:
    app = Service("shop", "memory://")
    found: list[AttemptFailure] = []
    app.on_error(found.append)

    @app.job(retry=NEVER)
    def work() -> None: ...

    with sandbox() as box:
        box.fail_next(work, ValueError("planned"))
        work.create_sync()
        box.run_all_sync()
    assert [str(each.exception) for each in found] == ["planned"]
