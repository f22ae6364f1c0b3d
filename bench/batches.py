"""One large batch: how fast it is created and drained, and when its fan-in job starts.

    python -m bench.batches --members 100000 --url postgresql://...

Without a URL it uses a SQLite file in a temporary folder. The worker is in this process, so the
memory that is printed is that of the creator and the worker together. The process exits with 1 if
the batch did not fire exactly once, or its fan-in job began later than two seconds after it.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from trellis import ActiveJob, Service
from trellis.engines.values import JobFilter

_PAGE: Final = 5000
#: Seconds after the end of the last member in which the fan-in job must begin.
LATEST_START: Final = 2.0


class Figures(NamedTuple):
    """What was measured."""

    members: int
    created_per_second: float
    drained_per_second: float
    #: Seconds from the end of the batch to the start of its fan-in job.
    start_delay: float
    fan_ins: int
    #: Peak memory in MiB when the first page was created, when all were, and at the end.
    memory: tuple[float, float, float]

    @property
    def is_good(self) -> bool:
        """Whether the batch fired once and in time."""
        return self.fan_ins == 1 and self.start_delay <= LATEST_START


async def measure(url: str, members: int) -> Figures:
    """Create a batch with so many members, drain it, and wait for its fan-in job."""
    service = Service("bench", url)

    @service.job
    async def member(number: int) -> int:
        return number

    @service.job
    async def total(job: ActiveJob[None]) -> int:
        assert job.batch is not None
        return (await job.batch.counts()).succeeded

    async with service:
        began = time.perf_counter()
        first = 0.0
        async with service.batch(then=total) as batch:
            numbers = iter(range(members))
            while page := list(islice(numbers, _PAGE)):
                await batch.create_many(member, page)
                first = first or _memory()
        created = time.perf_counter() - began
        memory = _memory()
        began = time.perf_counter()
        async with service.worker(concurrency=50):
            view = await batch.ref.wait("1h")
            drained = time.perf_counter() - began
            counted = await total.ref(str(view.fan_in)).wait("1m")
        assert counted == members, f"{counted} of {members} members succeeded"
        job = await total.ref(str(view.fan_in)).status()
        engine = await service.connection.engine()
        fan_ins = (await engine.count(JobFilter(types=("total",)))).total
        assert job.started_at is not None
        assert view.finished_at is not None
        delay = (job.started_at - view.finished_at).total_seconds()
        rates = members / created, members / drained
        return Figures(members, *rates, delay, fan_ins, (first, memory, _memory()))


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--members", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{Path(folder) / 'jobs.db'}"
        figures = asyncio.run(measure(url, given.members))
    for name, value in figures._asdict().items():
        sys.stdout.write(f"{name:<20} {value}\n")
    return 0 if figures.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
