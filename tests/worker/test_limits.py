"""Limits over the fleet as workers meet them: declared in code, met while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from trellis import ConfigurationError, Limit, Operator, Service
from trellis.core.durations import SECOND
from trellis.core.events import EventKind
from trellis.core.job import JobId
from trellis.engines.port import Engine


async def started_at(engine: Engine, ids: Sequence[str]) -> list[int]:
    """Return when attempts of these jobs began, by the engine's clock."""
    journals = [await engine.journal(JobId(each)) for each in ids]
    events = [event for journal in journals for event in journal]
    return sorted(event.at for event in events if event.kind is EventKind.STARTED)


async def test_a_declared_limit_holds_over_workers_and_is_gone_with_its_declaration(
    service: Service,
) -> None:
    running = most = 0
    service.queue("mails", limit=Limit(active=2))

    @service.job(queue="mails")
    async def send(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    refs = await send.create_many(range(40))
    async with service.worker(), service.worker(poll="10m"):
        for ref in refs:
            await ref.wait("20s")
    assert most <= 2
    async with service.connection.borrowed() as (engine, _):
        jobs = Operator(engine)
        (limit,) = await jobs.limits()
        assert (limit.kind, limit.active, limit.set_by_operator) == ("queue", 2, ())
        service._queue_limits.clear()
        async with service.worker():
            assert await jobs.limits() == []


async def test_a_worker_wakes_for_the_next_token_without_a_poll(service: Service) -> None:
    @service.job(limit=Limit(rate="1/300ms"))
    async def call(number: int) -> None: ...

    refs = await call.create_many(range(3))
    async with service.worker(poll="10m"):
        for ref in refs:
            await ref.wait("20s")
    async with service.connection.borrowed() as (engine, _):
        first, second, third = await started_at(engine, [ref.id for ref in refs])
        assert second - first >= 3 * SECOND // 10 <= third - second


def test_a_limit_that_is_no_limit_is_refused(service: Service) -> None:
    def send(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"limit=5 is not a Limit. Write .*active=5"):
        service.queue("mails", limit=5)  # type: ignore[arg-type] # the mistake
    service.queue("mails", limit=Limit(active=5))
    with pytest.raises(ConfigurationError, match="already declared a limit of its queue 'mails'"):
        service.queue("mails", limit=Limit(rate="1/1s"))
    with pytest.raises(ConfigurationError, match=r"no option 'rate_limit'. Write limit=Limit"):
        service.job(rate_limit="10/m")(send)  # type: ignore[call-overload] # as in Celery
