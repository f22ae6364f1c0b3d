"""One large batch: how fast it is created and drained, when its fan-in job starts, what it keeps.

    python -m bench.batches --members 100000 --url postgresql://...

Without a URL it uses a SQLite file in a temporary folder. One process creates the batch and another
works on it, so that the memory of each is seen by itself: the peak when a fifth of its work was
done, and at the end. The process exits with 1 if the batch did not fire exactly once, if its
fan-in job began later than two seconds after the end of the last member, or if memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from trellis import ActiveJob, Service
from trellis.engines import make_engine
from trellis.engines.values import JobFilter

_PAGE: Final = 5000
#: Seconds after the end of the last member in which the fan-in job must begin.
LATEST_START: Final = 2.0
#: The peak at the end may be so many times the peak after a fifth of the work.
MOST_GROWTH: Final = 1.25


class Figures(NamedTuple):
    """What was measured."""

    members: int
    created_per_second: float
    drained_per_second: float
    #: Seconds from the end of the batch to the start of its fan-in job.
    start_delay: float
    fan_ins: int
    #: Peak memory in MiB after a fifth of the work, and at the end.
    creator: tuple[float, float]
    worker: tuple[float, float]

    @property
    def is_good(self) -> bool:
        """Whether the batch fired once and in time, and memory stayed flat."""
        flat = all(end <= MOST_GROWTH * early for early, end in (self.creator, self.worker))
        return self.fan_ins == 1 and self.start_delay <= LATEST_START and flat

    def __str__(self) -> str:
        early, late = zip(self.creator, self.worker, strict=True)
        return (
            f"batch of {self.members:,}: created {self.created_per_second:,.0f}/s, drained "
            f"{self.drained_per_second:,.0f}/s, {self.fan_ins} fan-in, "
            f"{1000 * self.start_delay:.0f} ms after the end; memory of creator and worker: "
            f"{early[0]:.0f} and {early[1]:.0f} MiB after a fifth, {late[0]:.0f} and "
            f"{late[1]:.0f} MiB at the end"
        )


service: Final = Service("bench")


@service.job
async def member(number: int) -> int:
    """Do nothing."""
    return number


@service.job
async def total(job: ActiveJob[None]) -> int:
    """Count the members that succeeded."""
    assert job.batch is not None
    return (await job.batch.counts()).succeeded


async def create(url: str, members: int) -> dict[str, Any]:
    """Create a batch with so many members."""
    await make_engine(url).migrate()
    service.connection.point_at(url)
    async with service:
        began = time.perf_counter()
        early = 0.0
        async with service.batch(then=total) as batch:
            numbers = iter(range(members))
            while page := list(islice(numbers, _PAGE)):
                await batch.create_many(member, page)
                if not early and page[-1] >= members // 5:
                    early = _peak()
        rate = members / (time.perf_counter() - began)
    return {"batch": batch.id, "rate": rate, "memory": (early, _peak())}


async def drain(url: str, members: int, batch_id: str) -> dict[str, Any]:
    """Work on it, and wait for its fan-in job."""
    service.connection.point_at(url)
    async with service:
        batch = service.batch_ref(batch_id)
        began = time.perf_counter()
        async with service.worker(concurrency=50), asyncio.TaskGroup() as group:
            early = group.create_task(_peak_after(members // 5, batch.progress))
            view = await batch.wait("1h")
            rate = members / (time.perf_counter() - began)
            counted = await total.ref(str(view.fan_in)).wait("1m")
        assert counted == members, f"{counted} of {members} members succeeded"
        job = await total.ref(str(view.fan_in)).status()
        engine = await service.connection.engine()
        fan_ins = (await engine.count(JobFilter(types=("total",)))).total
    assert job.started_at is not None
    assert view.finished_at is not None
    delay = (job.started_at - view.finished_at).total_seconds()
    return {"rate": rate, "delay": delay, "fan_ins": fan_ins, "memory": (early.result(), _peak())}


async def _peak_after(finished: int, progress: Callable[[], Awaitable[Any]]) -> float:
    while (await progress()).finished < finished:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.2)
    return _peak()


def _peak() -> float:
    """Return the most memory this program had; `getrusage` would count what started it too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("This system has no /proc/self/status, which the benchmark reads.")


def measure(url: str, members: int) -> Figures:
    """Create a batch with so many members, drain it, and wait for its fan-in job."""
    made = _apart("create", url, members)
    done = _apart("drain", url, members, made["batch"])
    return Figures(
        members, made["rate"], done["rate"], done["delay"], done["fan_ins"],
        tuple(made["memory"]), tuple(done["memory"]),
    )  # fmt: skip


def _apart(part: str, *arguments: object) -> dict[str, Any]:
    """Run one part in a process of its own."""
    command = [sys.executable, "-m", "bench.batches", "--part", part, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{part} failed: {ended.stderr}")
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def main() -> int:
    """Measure and print."""
    if sys.argv[1:2] == ["--part"]:
        part, url, members, *rest = sys.argv[2:]
        work = create(url, int(members)) if part == "create" else drain(url, int(members), *rest)
        print(json.dumps(asyncio.run(work)))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--members", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(given.url or f"sqlite:///{Path(folder) / 'jobs.db'}", given.members)
    print(figures)
    return 0 if figures.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
