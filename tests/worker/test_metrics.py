"""The metrics of a worker say what happened, on each engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from tests.worker.faulty import FaultyEngine, eventually
from tests.worker.test_leases import QUICKLY, create, kinds, service_of
from trellis import JobDead, JobFailed, Retry, Service
from trellis.core.durations import SECOND
from trellis.core.events import EventKind
from trellis.engines.demand import Demand
from trellis.engines.values import WorkerInfo
from trellis.telemetry import current
from trellis.telemetry import metrics as table
from trellis.telemetry.metrics import Metric
from trellis.telemetry.registry import Labels, Value
from trellis.worker.supervisor import Supervisor


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    current.disable()
    current.collect()
    yield
    current.disable()


def values(metric: Metric) -> dict[Labels, Value]:
    assert current.registry is not None
    return dict(current.registry.snapshot().get(metric.name, {}))


def lane(name: str, *more: str) -> Labels:
    return ("shop", name, name, *more)


def count(metric: Metric, *labels: str) -> int:
    """Return how many values a histogram has."""
    value = values(metric)[labels]
    assert isinstance(value, tuple)
    return sum(value[0])


async def test_attempts_are_counted_by_how_they_ended(service: Service) -> None:
    @service.job(retry=Retry.fixed("1ms", attempts=4))
    async def stubborn() -> None:
        raise ValueError("again")

    @service.job(retry=Retry.never(), dead_letters=False)
    async def hopeless() -> None:
        raise ValueError("never")

    @service.job
    def quick(number: int) -> int:
        return number

    async with service.worker():
        with pytest.raises(JobDead):
            await (await stubborn.create()).wait()
        with pytest.raises(JobFailed):
            await (await hopeless.create()).wait()
        for ref in await quick.create_many(range(5)):
            await ref.wait()
    assert values(table.SETTLED) == {
        lane("stubborn", "retry"): 3, lane("stubborn", "dead"): 1, lane("hopeless", "failed"): 1,
        lane("quick", "completed"): 5, lane("stubborn", "completed"): 0,
        lane("hopeless", "completed"): 0,
    }  # fmt: skip
    assert values(table.RETRIES) == {lane("stubborn"): 3}
    started = {lane("stubborn"): 4, lane("hopeless"): 1, lane("quick"): 5}
    assert values(table.STARTED) == started
    for names, number in started.items():
        assert (count(table.DURATION, *names), count(table.WAIT, *names)) == (number, number)


async def test_what_runs_is_counted_while_it_runs(service: Service) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @service.job
    async def wait() -> None:
        begun.set()
        await go_on.wait()

    async with service.worker(concurrency=3):
        ref = await wait.create()
        await begun.wait()
        assert values(table.RUNNING) == {lane("wait"): 1}
        assert values(table.STARTED) == {lane("wait"): 1}
        assert (values(table.SLOTS), values(table.SETTLEMENTS_WAITING)) == ({(): 3}, {(): 0})
        go_on.set()
        await ref.wait()
        await eventually(lambda: values(table.RUNNING) == {lane("wait"): 0})
        assert values(table.STARTED) == {lane("wait"): 1}
    assert (values(table.RUNNING), values(table.STARTED)) == ({}, {lane("wait"): 1})


async def test_durations_and_waits_are_in_seconds(service: Service) -> None:
    @service.job
    async def quick(number: int) -> int:
        await asyncio.sleep(0)
        return number

    before = time.monotonic()
    refs = await quick.create_many(range(20))
    async with service.worker():
        for ref in refs:
            await ref.wait()
    longest = (time.monotonic() - before) * len(refs)
    for metric in (table.DURATION, table.WAIT):
        value = values(metric)[lane("quick")]
        assert isinstance(value, tuple)
        assert 0 < value[1] <= longest


async def test_batches_of_the_engine_are_counted_by_verb(service: Service) -> None:
    @service.job
    async def quick(number: int) -> int:
        return number

    refs = await quick.create_many(range(40))
    async with service.worker(concurrency=50):
        for ref in refs:
            await ref.wait()
    sizes = values(table.CALL_ITEMS)
    claimed = sizes["claim",]
    assert isinstance(claimed, tuple)
    assert claimed[1] == 40
    assert values(table.CALL_DURATION)["commit",]
    assert values(table.CALL_ERRORS) == {}


async def test_a_lost_lease_is_counted_where_it_is_found_and_a_late_result_where_it_comes() -> None:
    begun, go_on = threading.Event(), threading.Event()
    attempts = 0

    def work() -> int:
        nonlocal attempts
        attempts += 1
        mine = attempts
        if mine == 1:
            begun.set()
            go_on.wait(20)
        return mine

    service = service_of(work, retry=Retry.fixed("1ms"))
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"))
    async with Supervisor(engine, lambda: engine, service.job_types, QUICKLY):
        await eventually(begun.is_set)
        (session,) = await engine.sessions()
        await engine.close_session(session.id)
        await eventually(lambda: values(table.LEASES_LOST) == {lane("work"): 1})
        await eventually(lambda: values(table.LOST_THREADS) == {(): 1})
        go_on.set()

        async def is_refused() -> bool:
            return EventKind.STALE_COMPLETION_IGNORED in await kinds(engine, job_id)

        await eventually(is_refused)
        await eventually(lambda: values(table.STALE_WRITES) == {lane("work"): 1})
        await eventually(lambda: values(table.LOST_THREADS) == {(): 0})
    assert values(table.STARTED) == {lane("work"): 2}


async def test_the_attempt_of_a_worker_that_is_gone_counts_as_a_lost_lease() -> None:
    async def work() -> None:
        """Do nothing."""

    service = service_of(work, retry=Retry.fixed("1ms"))
    engine = FaultyEngine()
    await create(engine, service.find("work"))
    silent = await engine.open_session(WorkerInfo("silent", "host", 1), SECOND // 10)
    await engine.claim(silent.id, [Demand("shop", ("work",), 1)], 1)
    async with Supervisor(engine, lambda: engine, service.job_types, QUICKLY):
        await eventually(lambda: values(table.SETTLED).get(lane("work", "completed")) == 1)
    assert values(table.LEASES_LOST) == {lane("work"): 1}
    assert values(table.STARTED) == {lane("work"): 1}


async def test_a_loop_that_makes_no_step_for_half_a_second_has_stalled(service: Service) -> None:
    @service.job
    async def quick() -> None:
        """Do nothing."""

    async with service.worker() as worker:
        assert worker._telemetry.metrics is not None
        for now in (100.0, 100.1, 100.7, 100.8):
            worker._attempt_watch.sweep(now)
        stalls = values(table.LOOP_STALLS)[()]
    assert isinstance(stalls, int | float)
    assert stalls >= 1


async def test_errors_of_the_engine_are_counted(service: Service) -> None:
    engine = FaultyEngine()

    async def work() -> None:
        """Do nothing."""

    async with Supervisor(engine, lambda: engine, service_of(work).job_types, QUICKLY):
        engine.down = True
        await eventually(lambda: ("claim",) in values(table.CALL_ERRORS))
        engine.down = False


async def test_without_telemetry_a_worker_counts_nothing(service: Service) -> None:
    current.disable()

    @service.job
    async def quick() -> None:
        """Do nothing."""

    async with service.worker() as worker:
        await (await quick.create()).wait()
        assert worker._telemetry == (None, None)
        assert worker._engine is await service.connection.engine()
