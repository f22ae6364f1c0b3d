"""Trellis as people run it: typed payloads through the client, `trellis worker` with its guardian.

Default settings throughout: SQLite with WAL and `synchronous=FULL`, the journal on. A backlog waits
in a paused queue until every worker process is up, so no start of an interpreter is counted.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

from bench import marks
from bench.app import Order, Sent, drains, make_orders, noop, stamp, stamps
from bench.figures import Figure, Measured, System
from bench.journal import Journal
from bench.programs import Program, running
from bench.sizes import CALLERS, Sizes
from trellis import Service
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import QueueSettings


def create_and_drain(folder: Path, sizes: Sizes) -> Measured:
    """Create jobs in all three ways, then drain them with one worker process."""
    path = _move(drains, folder)
    created, jobs = asyncio.run(_create(sizes))
    rate = _drain(path, jobs, processes=1)
    return {System.TRELLIS: {**created, Figure.DRAIN: [rate]}}


def drain_with_two(folder: Path, sizes: Sizes) -> Measured:
    """Drain the jobs of one `create_many` with two worker processes."""
    path = _move(drains, folder)
    asyncio.run(_fill(sizes.many))
    return {System.TRELLIS: {Figure.DRAIN_2: [_drain(path, sizes.many, processes=2)]}}


def latency(folder: Path, sizes: Sizes) -> Measured:
    """Create single jobs for a worker that has nothing else to do."""
    path = _move(stamps, folder)
    asyncio.run(_open(stamps))
    count = sizes.warm_up + sizes.latencies
    with _worker(path, "stamps", processes=1) as worker:
        asyncio.run(_send(count))
        worker.wait_until(lambda: marks.count(folder, "latency") == count, "the last job began")
    found = marks.read(folder, "latency")[sizes.warm_up :]
    return {System.TRELLIS: {Figure.LATENCY: [nanoseconds / 1e6 for nanoseconds in found]}}


def _move(service: Service, folder: Path) -> Path:
    """Let a service keep its jobs in a new file."""
    path = folder / "jobs.db"
    service.connection.point_at(f"sqlite:///{path}")
    return path


# -- creating --------------------------------------------------------------------------------------


async def _create(sizes: Sizes) -> tuple[dict[Figure, list[float]], int]:
    """Create jobs in all three ways; return the rates, and how many jobs there are."""
    orders = make_orders(sizes.many)
    async with drains:
        one, first = await _by_callers(1, orders, sizes.seconds)
        callers, second = await _by_callers(CALLERS, orders, sizes.seconds)
        rates = {
            Figure.ONE: [one],
            Figure.CALLERS: [callers],
            Figure.MANY: [await _at_once(orders)],
        }
    return rates, first + second + len(orders)


async def _by_callers(callers: int, orders: list[Order], seconds: float) -> tuple[float, int]:
    """Let callers create one job after the other, each waiting for its own, for this long."""
    left = cycle(orders)
    began = time.perf_counter()

    async def call_after_call() -> int:
        count = 0
        while time.perf_counter() - began < seconds:
            await noop.create(next(left))
            count += 1
        return count

    count = sum(await asyncio.gather(*(call_after_call() for _ in range(callers))))
    return count / (time.perf_counter() - began), count


async def _at_once(orders: list[Order]) -> float:
    began = time.perf_counter()
    await noop.create_many(orders)
    return len(orders) / (time.perf_counter() - began)


async def _fill(count: int) -> None:
    async with drains:
        await noop.create_many(make_orders(count))


async def _send(count: int) -> None:
    """Create single jobs, 10 to 30 ms apart, so that no polling runs in step with them."""
    gaps = random.Random(count)
    async with stamps:
        for _ in range(count):
            await stamp.create(Sent(at=time.monotonic_ns()))
            await asyncio.sleep(gaps.uniform(0.01, 0.03))


async def _open(service: Service) -> None:
    async with service:
        pass


# -- draining --------------------------------------------------------------------------------------


def _drain(path: Path, jobs: int, processes: int) -> float:
    asyncio.run(_set_paused(path, paused=True))
    with _worker(path, "drains", processes) as worker, closing(Journal(path)) as journal:
        asyncio.run(_set_paused(path, paused=False))
        worker.wait_until(journal.is_drained, "the last job was settled")
        return journal.drain_rate(jobs)


@contextmanager
def _worker(path: Path, service: str, processes: int) -> Iterator[Program]:
    """Run `trellis worker` on this file; in the block, all its processes are up."""
    arguments = [
        "-m",
        "trellis",
        "worker",
        f"bench.app:{service}",
        "--url",
        f"sqlite:///{path}",
    ]
    if processes > 1:
        arguments += ["--processes", str(processes)]
    variables = {marks.VARIABLE: str(path.parent)}
    with running(arguments, path.parent, signal.SIGTERM, **variables) as worker:
        with closing(Journal(path)) as journal:
            worker.wait_until(lambda: journal.workers() >= processes, "its processes were up")
        yield worker


async def _set_paused(path: Path, *, paused: bool) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    try:
        await engine.set_queue(QueueSettings("bench", "noop", paused=paused))
    finally:
        await engine.close()
