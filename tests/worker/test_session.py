"""For how long a lease is kept: as long as its worker can work, and no longer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.worker.faulty import FaultyEngine, eventually
from tests.worker.test_leases import create, service_of, worker
from trellis import Service
from trellis.config import WorkerSettings
from trellis.errors import EngineError, ReadOnlyDatabase
from trellis.worker.supervisor import Supervisor

BRIEFLY = WorkerSettings().with_options(lease="100ms", poll="20ms", grace="1s")


def a_service() -> Service:
    async def work() -> None:
        await asyncio.Event().wait()

    return service_of(work)


def lease_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "trellis-lease"}


def tasks() -> set[str]:
    """Return what runs beside the test itself."""
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait while no loop runs in this thread."""
    ends = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_a_program_that_forgets_to_stop_its_worker_ends_and_renews_no_more() -> None:
    before = lease_threads()

    async def forget_to_stop() -> set[threading.Thread]:
        engine, service = FaultyEngine(), a_service()
        supervisor = worker(engine, service, BRIEFLY)
        await supervisor.start()
        await create(engine, service.find("work"))
        await eventually(lambda: len(supervisor._attempts.running) == 1)
        return lease_threads() - before

    (thread,) = asyncio.run(forget_to_stop())
    thread.join(20)
    assert not thread.is_alive()


def test_a_worker_whose_loop_stands_still_for_ten_leases_loses_its_session_until_it_moves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FaultyEngine()
    with asyncio.Runner() as runner:

        async def start() -> Supervisor:
            supervisor = worker(engine, a_service(), BRIEFLY)
            await supervisor.start()
            return supervisor

        supervisor = runner.run(start())
        keeper = supervisor._keeper
        wait_until(lambda: keeper.is_worker_stalled)
        seen = engine.renewals
        wait_until(supervisor._health.lease_may_have_expired)
        assert engine.renewals == seen

        async def move_again() -> None:
            await eventually(lambda: engine.renewals > seen)
            await supervisor.stop()

        runner.run(move_again())
    assert "has been blocked for too long" in caplog.text


async def test_a_stop_that_is_cut_short_leaves_nothing_running() -> None:
    threads, others = lease_threads(), tasks()
    engine, service = FaultyEngine(), a_service()
    settings = WorkerSettings().with_options(lease="3h", poll="20ms", grace="1h")
    supervisor = worker(engine, service, settings)
    await supervisor.start()
    await create(engine, service.find("work"))
    await eventually(lambda: len(supervisor._attempts.running) == 1)
    stopping = asyncio.create_task(supervisor.stop())
    await eventually(lambda: supervisor._environment.stopping)
    stopping.cancel()
    with suppress(asyncio.CancelledError):
        await stopping
    assert tasks() == others
    await eventually(lambda: lease_threads() <= threads)


@pytest.mark.parametrize("fault", [ReadOnlyDatabase, EngineError])
async def test_a_session_that_cannot_be_ended_does_not_keep_the_worker_running(
    fault: type[EngineError],
) -> None:
    others = tasks()
    engine = FaultyEngine()
    engine.closing_fault = fault("not now")
    async with worker(engine, a_service()):
        assert tasks() != others
    assert tasks() == others


async def test_renewals_go_on_after_the_thread_that_makes_them_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FaultyEngine()
    faults = [OSError("no more files")]

    def make_engine() -> FaultyEngine:
        if faults:
            raise faults.pop()
        return engine

    settings = WorkerSettings().with_options(lease="3s", poll="20ms", grace="1s")
    async with Supervisor(engine, make_engine, a_service().job_types, settings):
        await eventually(lambda: engine.renewals > 0)
    assert "The renewal of the lease failed; it is started again" in caplog.text
    assert "no more files" in caplog.text
