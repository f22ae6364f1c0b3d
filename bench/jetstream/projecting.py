"""The projection of the admin runtime: how many events a second it stores, and a whole rebuild."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.jetstream import engine
from bench.jetstream.measure import Server
from bench.jetstream.systems import TRELLIS, System
from bench.rows import Report
from trellis.admin.opening import admin_runtime
from trellis.worker.child_process import tune_collector

_LOOK: Final = 0.01
_PER_JOB: Final = 3


def project(server: Server, system: System, folder: Path) -> float:
    """Project a whole stream into a new file; return the events per second."""
    last = server.last(f"{system.prefix}_JOBS")
    tune_collector()  # as `trellis jobs serve` does
    return last / asyncio.run(_project(system.url(server.url), folder, last))


async def _project(url: str, folder: Path, last: int) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        began = time.perf_counter()
        async with admin_runtime(url, str(Path(place) / "jobs.sqlite"), changes=False) as runtime:
            while not await runtime.jobs.until(last, 1.0):
                pass
        return time.perf_counter() - began


def measure_rebuild(server: Server, events: int, report: Report) -> None:
    """Time `trellis jobs rebuild` over so many events of finished jobs."""
    jobs = -(-events // _PER_JOB)
    with server.fresh(TRELLIS) as folder:
        print(f"Making {jobs:,} finished jobs", flush=True)
        url = TRELLIS.url(server.url)
        asyncio.run(engine.make_finished(url, jobs))
        last = server.last(TRELLIS.stream.removesuffix("_WORK"))
        with tempfile.TemporaryDirectory(prefix="bench-") as place:
            file = str(Path(place) / "jobs.sqlite")
            command = [sys.executable, "-m", "trellis", "jobs", "rebuild", "--url", url]
            began = time.perf_counter()
            subprocess.run(
                [*command, "--projection", file], check=True, cwd=folder,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            took = time.perf_counter() - began
            size = Path(file).stat().st_size
    report.add(f"rebuild of {last:,} events", took)
    report.add("rebuild, events a second", last / took)
    report.add("rebuild, bytes of the file per job", size / jobs)
    report.show(f"rebuild of {last:,} events", "s")
    report.show("rebuild, events a second", "1/s")
    report.show("rebuild, bytes of the file per job", "B")
