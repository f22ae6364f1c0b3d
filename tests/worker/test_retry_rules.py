"""Which exceptions of a handler are retried, and after which delay: the declaration decides."""

from __future__ import annotations

import logging

import pytest

from trellis import JobFailed, Retry, Service
from trellis.core.durations import SECOND
from trellis.core.events import EventKind
from trellis.core.job import JobId


class Overloaded(ConnectionError):
    pass


async def retried_after(service: Service, job_id: str) -> int:
    """Return the delay before the second attempt."""
    engine = await service.connection.engine()
    (record,) = (await engine.load([JobId(job_id)])).records
    assert record is not None
    *_, last = await engine.journal(JobId(job_id))
    assert last.kind is EventKind.RETRY
    return (record.head.run_at - last.at) // SECOND


async def test_an_exception_that_is_never_retried_fails_the_job_at_once(service: Service) -> None:
    calls: list[int] = []

    @service.job(retry=Retry.fixed("1ms", never_on=(ValueError,)))
    def parse(number: int) -> None:
        calls.append(number)
        int("seven")

    async with service.worker(poll="20ms"):
        ref = await parse.create(1)
        with pytest.raises(JobFailed, match="failed: ValueError: invalid literal") as failed:
            await ref.wait("20s")
    assert (type(failed.value), calls) == (JobFailed, [1])


async def test_only_the_named_exceptions_are_retried(service: Service) -> None:
    calls: list[str] = []

    @service.job(retry=Retry.fixed("1ms", attempts=3, on=(ConnectionError,)))
    async def fetch(name: str) -> str:
        calls.append(name)
        if name == "busy" and calls.count(name) < 3:
            raise Overloaded
        if name == "wrong":
            raise KeyError(name)
        return name

    async with service.worker(poll="20ms"):
        assert await (await fetch.create("busy")).wait("20s") == "busy"
        with pytest.raises(JobFailed, match="KeyError: 'wrong'"):
            await (await fetch.create("wrong")).wait("20s")
    assert calls == ["busy"] * 3 + ["wrong"]


async def test_a_function_computes_the_delay_from_the_attempt_and_the_error(
    service: Service,
) -> None:
    def backoff(attempt: int, error: BaseException) -> str | None:
        return f"{attempt * 100}s" if isinstance(error, Overloaded) else None

    @service.job(retry=Retry.fixed("7s", backoff=backoff))
    async def fetch(name: str) -> None:
        raise (Overloaded if name == "busy" else KeyError)(name)

    async with service.worker():
        busy, other = await fetch.create_many(["busy", "other"])
        for ref in (busy, other):
            async for event in ref.events(follow=True):
                if event.kind is EventKind.RETRY:
                    break
    assert await retried_after(service, busy.id) == 100
    assert await retried_after(service, other.id) == 7


async def test_a_function_that_fails_leaves_the_delay_to_the_policy(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    def backoff(attempt: int, error: BaseException) -> str:
        raise RuntimeError

    @service.job(retry=Retry.fixed("7s", backoff=backoff))
    async def fetch() -> None:
        raise Overloaded

    async with service.worker():
        ref = await fetch.create()
        async for event in ref.events(follow=True):
            if event.kind is EventKind.RETRY:
                break
    assert await retried_after(service, ref.id) == 7
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert any(
        "The backoff function of shop/fetch failed after attempt 1" in each for each in lines
    )
