"""Huey's SQLite queue, measured beside Trellis: its own consumer as a real process, fast polling.

A task of Huey is gone when it is popped and nothing is written when it ends; so a drain lasts from
the start of the first task to the start of the last, which favours Huey.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

from bench import marks
from bench.figures import Figure, Measured, System
from bench.floor_sqlite import PAYLOAD
from bench.huey_tasks import HueyTasks, make_tasks
from bench.programs import Program, running
from bench.sizes import CALLERS, Sizes

#: Looks for tasks every 10 ms without ever slowing down; no scheduler of periodic tasks, no log.
_CONSUMER: Final = ("-m", "huey.bin.huey_consumer", "bench.huey_app.huey", "-q", "-n",
                    "-d", "0.01", "-m", "0.01", "-b", "1")  # fmt: skip
_ONE: Final = ("-k", "thread", "-w", "1")
_TWO: Final = ("-k", "process", "-w", "2")
_ORDER: Final[dict[str, object]] = json.loads(PAYLOAD)


def why_absent() -> str | None:
    """Return why Huey cannot be measured; None if it can."""
    try:
        import_module("huey")
    except ImportError:
        return "not installed"
    return None


def synced(folder: Path, sizes: Sizes) -> Measured:
    """Measure Huey with fsync on: what it acknowledges is on disk, as with Trellis."""
    return {System.HUEY_SYNCED: _measure(folder, sizes, is_synced=True)}


def unsynced(folder: Path, sizes: Sizes) -> Measured:
    """Measure Huey with fsync off: a power cut loses what was acknowledged last."""
    return {System.HUEY: _measure(folder, sizes, is_synced=False)}


def _measure(folder: Path, sizes: Sizes, *, is_synced: bool) -> dict[Figure, list[float]]:
    one, two = folder / "one", folder / "two"
    created = _create(folder / "create.db", sizes, is_synced=is_synced)
    with _consumer(one, sizes, _ONE, is_synced=is_synced) as (tasks, consumer):
        drained = _drain_rate(one, sizes, consumer)
        tasks.huey.storage.flush_queue()
        latencies = _latencies(one, sizes, tasks, consumer)
    with _consumer(two, sizes, _TWO, is_synced=is_synced) as (_, consumer):
        drained_by_two = _drain_rate(two, sizes, consumer)
    return {
        **created,
        Figure.DRAIN: [drained],
        Figure.DRAIN_2: [drained_by_two],
        Figure.LATENCY: latencies,
    }


def _create(path: Path, sizes: Sizes, *, is_synced: bool) -> dict[Figure, list[float]]:
    with _tasks(path, is_synced=is_synced) as tasks:
        return {
            Figure.ONE: [_rate(tasks, 1, sizes.seconds)],
            Figure.CALLERS: [_rate(tasks, CALLERS, sizes.seconds)],
        }


def _rate(tasks: HueyTasks, callers: int, seconds: float) -> float:
    """Let threads enqueue one task after the other for this long."""
    began = time.perf_counter()

    def call_after_call(_: int) -> int:
        count = 0
        while time.perf_counter() - began < seconds:
            tasks.noop(_ORDER)
            count += 1
        return count

    with ThreadPoolExecutor(callers) as threads:
        count = sum(threads.map(call_after_call, range(callers)))
        return count / (time.perf_counter() - began)


@contextmanager
def _tasks(path: Path, *, is_synced: bool) -> Iterator[HueyTasks]:
    tasks = make_tasks(path, synced=is_synced)
    try:
        yield tasks
    finally:
        tasks.huey.storage.close()


@contextmanager
def _consumer(
    folder: Path, sizes: Sizes, workers: tuple[str, ...], *, is_synced: bool
) -> Iterator[tuple[HueyTasks, Program]]:
    """Run the consumer on a backlog, which is made without fsync: only its draining counts."""
    folder.mkdir()
    path = folder / "tasks.db"
    with _tasks(path, is_synced=False) as tasks:
        for _ in range(sizes.huey):
            tasks.noop(_ORDER)
    variables = {
        marks.VARIABLE: str(folder),
        "BENCH_HUEY_FILE": str(path),
        "BENCH_HUEY_FSYNC": str(int(is_synced)),
    }
    arguments = (*_CONSUMER, *workers)
    with (
        _tasks(path, is_synced=is_synced) as tasks,
        running(arguments, folder, signal.SIGINT, **variables) as consumer,
    ):
        yield tasks, consumer


def _drain_rate(folder: Path, sizes: Sizes, consumer: Program) -> float:
    """Return tasks per second, of all or of those that began before time was up."""
    consumer.wait_until(lambda: marks.count(folder, "start") > 0, "the first task began")
    end = time.monotonic() + sizes.huey_seconds

    def is_over() -> bool:
        return time.monotonic() > end or marks.count(folder, "start") == sizes.huey

    consumer.wait_until(is_over, "the last task began")
    starts = marks.read(folder, "start")
    return (len(starts) - 1) * 1e9 / (max(starts) - min(starts))


def _latencies(folder: Path, sizes: Sizes, tasks: HueyTasks, consumer: Program) -> list[float]:
    count = sizes.warm_up + sizes.latencies
    gaps = random.Random(count)
    for _ in range(count):
        tasks.stamp(time.monotonic_ns())
        time.sleep(gaps.uniform(0.01, 0.03))
    consumer.wait_until(lambda: marks.count(folder, "latency") == count, "the last task began")
    found = marks.read(folder, "latency")[sizes.warm_up :]
    return [nanoseconds / 1e6 for nanoseconds in found]
