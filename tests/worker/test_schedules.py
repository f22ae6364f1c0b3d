"""Workers declare the schedules of their services, and the leader fires them."""

from __future__ import annotations

import asyncio

from trellis import ActiveJob, Service
from trellis.config import WorkerSettings
from trellis.core.durations import SECOND
from trellis.service import work


async def test_a_worker_runs_the_jobs_of_due_schedules(service: Service) -> None:
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    @service.job
    async def tick(job: ActiveJob[str]) -> None:
        seen.put_nowait((job.payload, job.id))

    service.schedule(tick, every="1s", payload="a", name="first")
    service.schedule(tick, every="1s", payload="b", name="second", paused=True)
    async with asyncio.timeout(20), service.worker(poll="50ms"):
        runs = [await seen.get() for _ in range(2)]
    assert {payload for payload, _ in runs} == {"a"}
    engine = await service.connection.engine()
    entries = await engine.slots("shop", "first")
    created = [each.job_id for each in reversed(entries) if each.decision.outcome == "created"]
    assert [job_id for _, job_id in runs] == created[:2]
    assert {each.decision.why for each in await engine.slots("shop", "second")} == {"paused"}
    spread = [each.decided_at - each.decision.slot for each in entries]
    assert max(spread) < 60 * SECOND


async def _start(service: Service, *types: str) -> None:
    async with work([service], WorkerSettings(types=types)):
        pass


def _program(url: str, *, with_schedules: bool) -> Service:
    service = Service("shop", url)

    @service.job
    async def a() -> None: ...

    @service.job
    async def b() -> None: ...

    if with_schedules:
        service.schedule(a, every="1h")
        service.schedule(b, every="1h")
    return service


async def _retired(service: Service) -> dict[str, bool]:
    engine = await service.connection.engine()
    return {each.name: each.retired_at is not None for each in await engine.schedules()}


async def test_schedules_of_types_that_are_gone_are_retired(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with _program(url, with_schedules=True) as old:
        await _start(old)
    async with Service("shop", url) as new:

        @new.job
        async def c() -> None: ...

        new.declare("b", result=type(None))  # its handler, and its schedule, are in another program
        await _start(new)
        assert await _retired(new) == {"a": True, "b": False}
    async with Service("shop", url) as newer:

        @newer.job
        async def c() -> None: ...

        @newer.job
        async def d() -> None: ...

        await _start(newer, "d")
        assert await _retired(newer) == {"a": True, "b": True}


async def test_schedules_that_are_gone_are_retired_and_come_back(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with _program(url, with_schedules=True) as old:
        await _start(old)
        assert await _retired(old) == {"a": False, "b": False}
        async with _program(url, with_schedules=False) as new:
            await _start(new, "a")  # it speaks only for the schedules of its types
            assert await _retired(new) == {"a": True, "b": False}
            await _start(new)
            assert await _retired(new) == {"a": True, "b": True}
        async with Service("other", url) as other:

            @other.job
            async def a() -> None: ...

            await _start(other)  # it has nothing to do with the schedules of another service
        await _start(old, "b")
        assert await _retired(old) == {"a": False, "b": False}
