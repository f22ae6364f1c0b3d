"""Growth: what a create, a claim and a load take with more and more jobs in the stream.

Half of the jobs are completed, the others wait; the stream is filled further from size to size. An
admin runtime keeps a projection, as in production: jobs of some age are loaded from it. Before each
size, the same calls are timed on a second, nearly empty deployment of the same server, so that a
machine that has become slower does not count as growth.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.jetstream import engine
from bench.jetstream.measure import Server, migrate
from bench.jetstream.systems import TRELLIS
from bench.rows import Report
from tests.harness.servers.nats import NatsServer
from trellis.core.job import JobId
from trellis.errors import ProjectionUnavailable

_CALLS: Final = 300
_EMPTY: Final = "empty"
#: Loads are of jobs that were just created, and of any.
_VERBS: Final = ("create", "claim", "load new", "load")
_MOST: Final = 1.5
_LOOK: Final = 0.1
#: Seconds in which the projection has everything.
_PROJECTED: Final = 900.0
#: Seconds until all jobs are of some age.
_AGED: Final = 11.0


def measure_growth(
    process: NatsServer, server: Server, sizes: Sequence[int], report: Report
) -> None:
    """Time single calls at each size, and read the memory of the server."""
    print("Single calls with more and more jobs in the stream:", flush=True)
    with server.fresh(TRELLIS):
        server.run(migrate(server.url, _EMPTY))
        bare = _resident(process)
        with _served(TRELLIS.url(server.url), process), _served(_empty(server), process):
            _measure_sizes(process, server, sizes, bare, report)
    for verb in _VERBS:
        small, large = (f"{size:,} jobs, {verb}" for size in (sizes[0], sizes[-1]))
        ratio = report.median(large) / report.median(small)
        weather = report.median(f"{large}, beside") / report.median(f"{small}, beside")
        bar = f"{verb} with {sizes[-1]:,} jobs ≤ 1.5 of {sizes[0]:,} (nearly empty: {weather:.2f})"
        report.judge(bar, ratio, holds=ratio <= _MOST)


def _empty(server: Server) -> str:
    return f"{server.url}?prefix={_EMPTY}"


@contextmanager
def _served(url: str, process: NatsServer) -> Iterator[None]:
    """Run an admin runtime, with its projection beside the data of the server."""
    file = process.folder / f"{url.rpartition('=')[2]}.sqlite"
    command = [sys.executable, "-m", "trellis", "jobs", "serve", "--url", url]
    runtime = subprocess.Popen(
        [*command, "--projection", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        runtime.terminate()
        runtime.wait()


def _measure_sizes(
    process: NatsServer, server: Server, sizes: Sequence[int], bare: int, report: Report
) -> None:
    before, known = 0, list[JobId]()
    for size in sizes:
        known += asyncio.run(_grow(TRELLIS.url(server.url), size - before))
        before = size
        _time(server, size, known, report)
        memory = (_resident(process) - bare) / size
        report.add(f"{size:,} jobs, memory of the server", memory)
        report.show(f"{size:,} jobs, memory of the server", "B/job")


async def _grow(url: str, jobs: int) -> list[JobId]:
    async with engine.opened(url) as opened:
        known = await engine.fill(opened, jobs)
        await engine.finish(opened, jobs // 2)
        async with asyncio.timeout(_PROJECTED):
            while True:
                with suppress(ProjectionUnavailable):
                    if not any(lag.messages for lag in await opened.projection_lag()):
                        return known
                await asyncio.sleep(_LOOK)


def _time(server: Server, size: int, known: list[JobId], report: Report) -> None:
    few = asyncio.run(_grow(_empty(server), 100))
    time.sleep(_AGED)
    beside = asyncio.run(engine.timed(_empty(server), few, _CALLS))
    found = asyncio.run(engine.timed(TRELLIS.url(server.url), known, _CALLS))
    for verb in (*_VERBS, "bare read"):
        name = f"{size:,} jobs, {verb}"
        report.add(f"{name}, beside", statistics.median(beside[verb]))
        report.add(name, statistics.median(found[verb]))
        report.show(name, "ms", f"{name}, beside")


def _resident(process: NatsServer) -> int:
    """Return the memory of the server, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
