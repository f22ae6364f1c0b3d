"""How a worker serves good jobs beside hostile ones: `python -m tests.harness.hostile`.

Two runs against a real `trellis worker` on a SQLite file; both end by themselves.

- `hung`: quick jobs without end in 4 slots, and 100 plain handlers over a minute that outlive their
  timeout and never return. The rate of quick jobs is compared with the rate before, in one run.
- `poison`: 2 good jobs a second and one that ends its process every two seconds, in 10 slots: how
  long the good ones wait, and how many attempts they were charged.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.harness import hostile_jobs, warden
from tests.worker.faulty import eventually
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter

_ROOT = Path(__file__).parents[2]
_FEED = 200
_FIRST = 4
_WARM_UP = 3.0
_PATIENCE = 120.0


class Hung(NamedTuple):
    """Quick jobs per second before and beside hung handlers, and what became of those."""

    before: float
    beside: float
    dead: int
    processes: int

    @property
    def ratio(self) -> float:
        """Which part of the rate was left."""
        return self.beside / self.before


class Poison(NamedTuple):
    """How many seconds good jobs took from creation to end, and the most attempts of one."""

    waits: list[float]
    attempts: int
    processes: int


async def measure_hung(seconds: float, hung: int) -> Hung:
    """Measure the rate of quick jobs for a while, then beside hung handlers for so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        async with _worker(Path(folder), concurrency=4) as engine:
            feeding = asyncio.create_task(_feed(engine))
            try:
                await _until_ended(engine, "quick", 1)
                await asyncio.sleep(_WARM_UP)
                before = await _rate(engine, seconds / 3)
                creating = asyncio.create_task(_create_over(seconds, hung))
                beside = await _rate(engine, seconds)
                await creating
                await _until_ended(engine, "hang", hung)
            finally:
                feeding.cancel()
            dead = (await engine.count(JobFilter(types=("hang",)), "state")).groups
            return Hung(before, beside, dead.get(State.DEAD, 0), len(await engine.sessions()))


async def measure_poison(seconds: float) -> Poison:
    """Measure how long good jobs take beside jobs that end their process."""
    with tempfile.TemporaryDirectory() as folder:
        async with _worker(Path(folder), concurrency=10) as engine:
            await hostile_jobs.quick.create(0)
            await _until_ended(engine, "quick", 1)
            numbers = range(int(seconds * 2))
            for number in numbers:
                await hostile_jobs.good.create(number)
                if number % 4 == 0:
                    await hostile_jobs.poison.create(number)
                await asyncio.sleep(0.5)
            await _until_ended(engine, "good", len(numbers))
            page = await engine.find(JobFilter(types=("good",)), limit=len(numbers))
            waits = [
                ((record.head.finished_at or 0) - record.definition.created_at) / 1e6
                for record in page.jobs
            ]
            attempts = max(record.head.attempt for record in page.jobs)
            return Poison(waits, attempts, len(await engine.sessions()))


@asynccontextmanager
async def _worker(folder: Path, *, concurrency: int) -> AsyncIterator[Engine]:
    """Run a worker on a new file; yield the engine of this process."""
    warden.watch()
    url = f"sqlite:///{folder / 'jobs.db'}"
    hostile_jobs.app.connection.point_at(url)
    command = [
        sys.executable, "-m", "trellis", "worker", "tests.harness.hostile_jobs:app",
        "--url", url, f"--concurrency={concurrency}", "--grace=10s", "--log-level=error",
    ]  # fmt: skip
    variables = {**os.environ, "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
    async with hostile_jobs.app as service:
        with subprocess.Popen(  # noqa: ASYNC220 - a short call
            command, cwd=_ROOT, env=variables, stderr=subprocess.DEVNULL
        ) as worker:
            try:
                yield await service.connection.engine()
            finally:
                worker.terminate()
                await asyncio.to_thread(worker.wait)


async def _feed(engine: Engine) -> None:
    """Keep quick jobs waiting."""
    waiting = JobFilter(types=("quick",), states=(State.PENDING,))
    while True:
        if (await engine.count(waiting)).total < _FEED:
            await hostile_jobs.quick.create_many(range(_FEED))
        await asyncio.sleep(0.1)


async def _create_over(seconds: float, count: int) -> None:
    for number in range(count):
        await hostile_jobs.hang.create(number, priority=_FIRST)
        await asyncio.sleep(seconds / count)


async def _count(engine: Engine) -> int:
    done = JobFilter(types=("quick",), states=(State.COMPLETED,))
    return (await engine.count(done)).total


async def _rate(engine: Engine, seconds: float) -> float:
    """Return how many quick jobs complete per second in this span."""
    count, began = await _count(engine), time.monotonic()
    await asyncio.sleep(seconds)
    return (await _count(engine) - count) / (time.monotonic() - began)


async def _until_ended(engine: Engine, name: str, count: int) -> None:
    """Wait until so many jobs of a type have ended."""
    ended = (State.COMPLETED, State.DEAD)

    async def have_ended() -> bool:
        return (await engine.count(JobFilter(types=(name,), states=ended))).total >= count

    await eventually(have_ended, _PATIENCE)


def main() -> None:
    """Run both and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hung", type=int, default=100)
    options = parser.parse_args()
    hung = asyncio.run(measure_hung(options.seconds, options.hung))
    print(
        f"quick jobs: {hung.before:.0f}/s before, {hung.beside:.0f}/s beside {options.hung} hung "
        f"handlers over {options.seconds:.0f} s, {hung.ratio:.0%} of the rate; {hung.dead} of them "
        f"are dead, {hung.processes} worker processes"
    )
    poison = asyncio.run(measure_poison(options.seconds * 2 / 3))
    print(
        f"good jobs beside poison: median {median(poison.waits):.2f} s, worst "
        f"{max(poison.waits):.2f} s, at most {poison.attempts} attempts charged, "
        f"{poison.processes} worker processes"
    )


if __name__ == "__main__":
    main()
