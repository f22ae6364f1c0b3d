"""A thread that outlives its attempt does not keep a slot of an embedded worker."""

from __future__ import annotations

import threading

import pytest

from tests.worker.faulty import eventually
from trellis import ActiveJob, JobCancelled, JobDead, Retry, Service, control
from trellis.core.commands import Crash
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.engines.demand import Demand
from trellis.engines.values import WorkerInfo
from trellis.worker.supervisor import Supervisor


@pytest.fixture
def go_on() -> threading.Event:
    return threading.Event()


def lost(worker: Supervisor) -> int:
    return len(worker._attempts.lost)


def open_slots(worker: Supervisor) -> int:
    return len(worker._executor._tasks)


async def test_another_slot_opens_for_each_lost_thread_and_closes_when_it_ends(
    service: Service, go_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @service.job(timeout="20ms", retry=Retry.never())
    def hang(number: int) -> None:
        go_on.wait(20)

    @service.job
    def quick(number: int) -> int:
        return number

    async with service.worker(concurrency=2) as worker:
        for number in range(2):
            with pytest.raises(JobDead, match="longer than 20ms"):
                await (await hang.create(number)).wait()
        assert (lost(worker), open_slots(worker)) == (2, 4)
        assert await (await quick.create(3)).wait() == 3
        await eventually(lambda: caplog.text.count("still runs") == 2)
        go_on.set()
        await eventually(lambda: (lost(worker), open_slots(worker)) == (0, 2))
        assert await (await quick.create(4)).wait() == 4
    assert (
        "(shop/hang) still runs 1s after its timeout. A thread cannot be stopped. "
        "Another slot was opened for it (lost threads: 2; most: 2)."
    ) in caplog.text


async def test_a_forced_cancel_gives_the_slot_back_too(
    service: Service, go_on: threading.Event
) -> None:
    begun = threading.Event()

    @service.job
    def hang(number: int) -> None:
        begun.set()
        go_on.wait(20)

    @service.job
    def quick(number: int) -> int:
        return number

    async with service.worker(concurrency=1, lease="600ms"):
        ref = await hang.create(1)
        await eventually(begun.is_set)
        await ref.cancel(force=True)
        with pytest.raises(JobCancelled):
            await ref.wait()
        assert await (await quick.create(3)).wait() == 3
        go_on.set()


async def test_as_many_slots_open_as_the_worker_has_and_the_next_ones_are_kept(
    service: Service, go_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    gates = [threading.Event() for _ in range(2)]

    @service.job(timeout="20ms", retry=Retry.never())
    def hang(number: int) -> None:
        gates[number].wait(20)

    @service.job
    def quick(number: int) -> int:
        return number

    async with service.worker(concurrency=1) as worker:
        for number in range(2):
            with pytest.raises(JobDead):
                await (await hang.create(number)).wait()
        ref = await quick.create(3)
        await eventually(lambda: "It keeps its slot, as 2 threads are lost." in caplog.text)
        assert (lost(worker), open_slots(worker)) == (2, 2)
        gates[0].set()  # its slot goes on in place of the one that is kept
        assert await ref.wait() == 3
        assert (lost(worker), open_slots(worker)) == (1, 2)
        gates[1].set()
        await eventually(lambda: (lost(worker), open_slots(worker)) == (0, 1))
        assert await (await quick.create(4)).wait() == 4


async def test_a_suspect_that_runs_alone_blocks_no_slot_once_its_thread_is_lost(
    service: Service, go_on: threading.Event
) -> None:
    begun: list[int] = []

    @service.job(timeout="20ms", retry=Retry.after("1h"))
    def hang(number: int) -> None:
        begun.append(number)
        go_on.wait(20)

    @service.job
    def quick(number: int) -> int:
        return number

    engine = await service.connection.engine()
    ref = await hang.create(1)
    session = (await engine.open_session(WorkerInfo("dead", "here", 1, ""), SECOND)).id
    claimed = await engine.claim(session, [Demand("shop", ("hang",), 1)], 1)
    (record,) = claimed.jobs
    assert record.head.fence is not None
    await control.apply(engine, JobId(ref.id), Crash(record.head.fence, "It died.", alone=False))
    async with service.worker(concurrency=1) as worker:
        await eventually(lambda: lost(worker) == 1)
        assert await (await quick.create(3)).wait("10s") == 3
        assert (begun, lost(worker)) == ([1], 1)
        go_on.set()
        await eventually(lambda: (lost(worker), open_slots(worker)) == (0, 1))
        assert await (await quick.create(4)).wait("10s") == 4


async def test_a_handler_that_notices_the_stop_is_not_lost(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    @service.job(timeout="20ms", retry=Retry.never())
    def careful(job: ActiveJob[int]) -> None:
        while not job.stopping:
            threading.Event().wait(0.005)

    async with service.worker(concurrency=1) as worker:
        with pytest.raises(JobDead):
            await (await careful.create(1)).wait()
        await eventually(lambda: (lost(worker), open_slots(worker)) == (0, 1))
    assert "still runs" not in caplog.text


async def test_a_worker_with_lost_threads_stops_and_drains(
    service: Service, go_on: threading.Event
) -> None:
    @service.job(timeout="20ms", retry=Retry.never())
    def hang(number: int) -> None:
        go_on.wait(20)

    async with service.worker(concurrency=1, grace="1h") as worker:
        with pytest.raises(JobDead):
            await (await hang.create(1)).wait()
        await worker.finish()
    go_on.set()
