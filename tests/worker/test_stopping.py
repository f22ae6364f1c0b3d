"""Stopping a worker: finish, hand back, leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.worker.faulty import eventually
from trellis import ActiveJob, JobRef, Service, State
from trellis.core.job import Head, JobId


async def head(service: Service, ref: JobRef[Any]) -> Head:
    engine = await service.connection.engine()
    record = (await engine.load([JobId(ref.id)])).records[0]
    assert record is not None
    return record.head


async def test_a_running_handler_may_finish_within_the_grace(service: Service) -> None:
    begun = asyncio.Event()

    @service.job
    async def patient(job: ActiveJob[str]) -> str:
        begun.set()
        while not job.stopping:  # noqa: ASYNC110 - a property is all a handler has
            await asyncio.sleep(0.001)
        return "finished"

    async with service.worker():
        ref = await patient.create("x")
        await asyncio.wait_for(begun.wait(), 10)
    assert (await ref.status()).state is State.COMPLETED


async def test_a_handler_that_outlasts_the_grace_is_handed_back_uncounted(
    service: Service,
) -> None:
    begun = asyncio.Event()

    @service.job
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with service.worker(grace="10ms"):
        ref = await endless.create()
        await asyncio.wait_for(begun.wait(), 10)
    after = await head(service, ref)
    assert (after.state, after.attempt, after.claims) == (State.RETRY, 0, 1)


async def test_a_type_may_fail_its_jobs_on_shutdown_instead(service: Service) -> None:
    begun = asyncio.Event()

    @service.job(on_shutdown="fail")
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with service.worker(grace="10ms"):
        ref = await endless.create()
        await asyncio.wait_for(begun.wait(), 10)
    assert str((await ref.status()).error) == "Worker received SIGTERM"


async def test_a_thread_that_will_not_end_is_handed_back_too(service: Service) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @service.job
    def stuck() -> None:
        begun.set()
        go_on.wait(20)

    try:
        async with service.worker(grace="10ms"):
            ref = await stuck.create()
            await eventually(begun.is_set)
        assert (await ref.status()).state is State.RETRY
    finally:
        go_on.set()


async def test_a_handler_that_ignores_its_cancellation_is_left_behind(service: Service) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @service.job
    async def deaf() -> None:
        begun.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    async with service.worker(grace="10ms"):
        ref = await deaf.create()
        await asyncio.wait_for(begun.wait(), 10)
    go_on.set()
    assert (await ref.status()).state is State.RETRY
    await asyncio.sleep(0)


async def test_a_stopped_worker_has_ended_its_session_and_holds_nothing(service: Service) -> None:
    @service.job
    async def quick(number: int) -> int:
        return number

    async with service.worker() as worker:
        await quick.create_many(range(100))
        await eventually(lambda: worker.settled > 10)
    engine = await service.connection.engine()
    (session,) = await engine.sessions()
    assert (session.ended_at is not None, session.held) == (True, 0)
    assert not (await engine.due("lost", 10)).jobs


async def test_a_second_worker_finishes_what_the_first_handed_back(service: Service) -> None:
    @service.job
    async def quick(number: int) -> int:
        return number

    refs = await quick.create_many(range(600))
    async with service.worker() as first:
        await eventually(lambda: first.settled > 50)
    async with service.worker():
        results = await asyncio.gather(*(ref.wait("20s") for ref in refs))
    assert results == list(range(600))


async def test_threads_of_a_stopped_worker_end() -> None:
    service = Service("shop", "memory://")
    before = set(threading.enumerate())  # other tests may have started the portal

    @service.job
    def plain(number: int) -> None:
        return None

    async with service, service.worker():
        refs = await plain.create_many(range(20))
        await asyncio.gather(*(ref.wait("10s") for ref in refs))

    def ours() -> bool:
        new = set(threading.enumerate()) - before
        return any(thread.name.startswith("trellis-") for thread in new)

    await eventually(lambda: not ours())
