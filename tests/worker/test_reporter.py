"""What a worker reports about itself reaches the engine soon after it has changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue

import pytest

from tests.worker.faulty import eventually
from trellis import ActiveJob, Retry, Service
from trellis.config import WorkerSettings
from trellis.engines.worker_report import WorkerReport
from trellis.service import work

pytestmark = pytest.mark.long

#: No regular renewal happens during a test.
_LEASE = "10m"


@pytest.fixture
def go_on() -> threading.Event:
    return threading.Event()


async def report_of(service: Service) -> WorkerReport:
    engine = await service.connection.engine()
    return (await engine.sessions())[0].report


async def reported(service: Service, holds: Callable[[WorkerReport], bool]) -> WorkerReport:
    """Return the first report of the newest worker that holds."""

    async def look() -> bool:
        return holds(await report_of(service))

    await eventually(look)
    return await report_of(service)


async def test_full_slots_and_full_types_are_reported_and_free_ones_too(
    service: Service, go_on: threading.Event
) -> None:
    @service.job(concurrency=1)
    def single(number: int) -> None:
        go_on.wait(20)

    async with service.worker(concurrency=2, lease=_LEASE):
        refs = [await single.create(1), await single.create(2)]
        found = await reported(service, lambda report: bool(report.full_types))
        assert found == WorkerReport(1, {"shop/single": 1}, {"shop/single": 1})
        go_on.set()
        for ref in refs:
            await ref.wait()
        await reported(service, lambda report: report == WorkerReport())


async def test_a_worker_that_has_begun_its_last_job_reports_that_it_claims_no_more(
    service: Service, go_on: threading.Event
) -> None:
    @service.job
    def last(number: int) -> None:
        go_on.wait(20)

    settings = WorkerSettings().with_options(concurrency=4, max_jobs=1, lease=_LEASE)
    async with work([service], settings):
        ref = await last.create(1)
        found = await reported(service, lambda report: report.stopping)
        assert found.running == 1
        go_on.set()
        await ref.wait()


async def test_a_lost_thread_is_reported_until_it_ends(
    service: Service, go_on: threading.Event
) -> None:
    @service.job(timeout="50ms", retry=Retry.never())
    def hang(number: int) -> None:
        go_on.wait(20)

    async with service.worker(lease=_LEASE):
        ref = await hang.create(1)
        found = await reported(service, lambda report: bool(report.lost_threads))
        (lost,) = found.lost_threads
        assert (found.running, lost.job_id, lost.type) == (0, ref.id, "shop/hang")
        go_on.set()
        await reported(service, lambda report: report == WorkerReport())


async def test_a_blocked_loop_is_reported_with_its_line_and_its_job(
    tmp_path: Path, go_on: threading.Event
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    service, watching = Service("shop", url), Service("shop", url)
    blocked_job = Queue[str]()

    @service.job
    async def neighbour(number: int) -> None:
        await asyncio.to_thread(go_on.wait, 20)

    @service.job
    async def block(number: int) -> None:
        go_on.wait(20)

    async def work() -> None:
        async with service, service.worker(lease=_LEASE):
            await neighbour.create(1)
            ref = await block.create(1)
            blocked_job.put(ref.id)
            await ref.wait()
            await asyncio.to_thread(seen.wait, 20)

    seen = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    async with watching:
        try:
            job_id = await asyncio.to_thread(blocked_job.get)
            found = await reported(watching, lambda report: report.blocked_loop is not None)
            blocked = found.blocked_loop
            assert blocked is not None
            assert (blocked.job_id, found.running) == (job_id, 2)
            assert f"{__file__}:" in blocked.where
            assert blocked.where.endswith(" in block")
            go_on.set()
            await reported(watching, lambda report: report.blocked_loop is None)
        finally:
            go_on.set()
            seen.set()
            await asyncio.to_thread(thread.join)


async def test_who_waits_for_a_lock_is_reported(service: Service, go_on: threading.Event) -> None:
    @service.job
    def book(job: ActiveJob[int]) -> None:
        with job.lock("ledger"):
            go_on.wait(20)

    async with service.worker(lease=_LEASE):
        first = await book.create(1)
        engine = await service.connection.engine()

        async def is_taken() -> bool:
            return any(each.name == "ledger" for each in await engine.locks())

        await eventually(is_taken)
        second = await book.create(2)
        found = await reported(service, lambda report: bool(report.lock_waits))
        assert [(each.job_id, each.lock) for each in found.lock_waits] == [(second.id, "ledger")]
        go_on.set()
        await first.wait()
        await second.wait()
        await reported(service, lambda report: not report.lock_waits)
