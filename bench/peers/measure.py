"""The measures, the same for every system.

A drain's rate is the number of jobs that the store shows as settled, over the time from the first
handler's start to that reading. There is no rate when the store shows more than the handlers'
marks do. No clock or counter of a system is used.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from bench import marks
from bench.peers import processes, store, systems
from bench.peers.figures import Figure, Values
from bench.peers.server import Server
from bench.peers.sizes import Sizes
from bench.peers.store import Left
from bench.peers.systems import System
from bench.peers.workers import PeerFailed, Workers, ask, running

_DATABASE: Final = "bench"
_TEMPLATE: Final = "bench_template"
_FOREVER: Final = "600"
_LAST_ONES: Final = 10.0


@dataclass(frozen=True, slots=True)
class Bench:
    """One system's turn: where it is measured, and how much."""

    server: Server
    system: System
    sizes: Sizes

    def ask(self, url: str, name: str, folder: Path, **options: float | str) -> dict[str, float]:
        """Run a command of the system's program."""
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        arguments = (name, "--url", url, *words)
        return ask(systems.command(self.system, *arguments), systems.variables(self.system, folder))

    @contextmanager
    def workers(self, url: str, folder: Path, count: int) -> Iterator[Workers]:
        """Run the system's worker with this number of processes."""
        commands = systems.workers(self.system, url, count)
        with running(commands, folder, systems.variables(self.system, folder)) as workers:
            yield workers


class Drained(NamedTuple):
    """One drain."""

    rate: float
    is_capped: bool
    #: Seconds per 1,000 jobs.
    worker: float
    server: float
    connections: int


def prepare(bench: Bench) -> None:
    """Set up the system's tables once; every part begins with a copy of them."""
    url = store.make_database(bench.server, _TEMPLATE)
    with _folder() as folder:
        bench.ask(url, "migrate", folder)


def clear(bench: Bench) -> None:
    """Leave nothing of the system behind."""
    for name in (_DATABASE, _TEMPLATE):
        store.drop_database(bench.server, name)


def create(bench: Bench, command: str) -> float:
    """Create single jobs for a time; return the rate."""
    with _fresh(bench) as (url, folder):
        return _rate(bench.ask(url, command, folder, seconds=bench.sizes.seconds))


def create_many(bench: Bench) -> float:
    """Create many jobs by bulk calls; return the rate."""
    sizes = bench.sizes
    with _fresh(bench) as (url, folder):
        return _rate(bench.ask(url, "bulk", folder, jobs=sizes.many, seconds=sizes.many_seconds))


def drain(bench: Bench, count: int, backlog: int = 0) -> Drained:
    """Drain jobs with this number of worker processes, while a backlog waits behind them."""
    jobs = bench.sizes.drain * count
    with _fresh(bench) as (url, folder):
        fill(bench, url, folder, jobs + backlog)
        with store.connected(url) as connection, bench.workers(url, folder, count) as workers:
            return _Drain(bench, workers, connection, folder, jobs).watch(backlog)


def latency(bench: Bench) -> Values:
    """Create single jobs for a worker that has nothing else to do; read its memory before."""
    sizes = bench.sizes
    with _fresh(bench) as (url, folder), bench.workers(url, folder, 1) as workers:
        bench.ask(url, "latency", folder, jobs=1)
        _wait_for_latencies(workers, folder, 1)
        time.sleep(sizes.rest)
        memory = processes.pss_megabytes(workers.pids)
        count = sizes.warm_up + sizes.latencies
        bench.ask(url, "latency", folder, jobs=count)
        _wait_for_latencies(workers, folder, 1 + count)
        found = marks.read(folder, "latency")[1 + sizes.warm_up :]
    return {
        Figure.MEMORY: [memory],
        Figure.LATENCY: [nanoseconds / 1e6 for nanoseconds in found],
    }


def fill(bench: Bench, url: str, folder: Path, jobs: int) -> None:
    """Make a backlog: one job by the system itself, and copies of its row; else bulk calls."""
    if bench.system.table is None:
        bench.ask(url, "bulk", folder, jobs=jobs, seconds=_FOREVER)
    else:
        bench.ask(url, "create-one", folder, seconds=0)
        store.multiply(url, bench.system, jobs)
    store.settle(url)
    with store.connected(url) as connection:
        there = store.left(connection, bench.system).jobs
    if there != jobs:
        raise PeerFailed(f"the backlog is {there:,} jobs instead of {jobs:,}")


@dataclass(frozen=True, slots=True)
class _Drain:
    """A drain that goes on, watched without weighing on it: by the size of files, until the end."""

    bench: Bench
    workers: Workers
    connection: psycopg.Connection
    folder: Path
    jobs: int

    def watch(self, backlog: int) -> Drained:
        """Wait until only the backlog is left, or until time is up; return what it was."""
        jobs, longest = self.jobs, self.bench.sizes.drain_seconds
        self.workers.wait_until(lambda: self._starts() > 0, "a first handler's start")
        before = self._cpu()
        if not self.workers.wait(lambda: self._starts() >= jobs // 2, longest / 2):
            longest /= 2  # it would not get there: what it has done by now is its rate
        open_ones = store.connections(self.connection)
        self.workers.wait(lambda: self._starts() >= jobs, longest - self._age(time.monotonic_ns()))
        seen = self._wait_for_settlement(backlog, longest)
        used = [late - soon for late, soon in zip(self._cpu(), before, strict=True)]
        done, starts = jobs + backlog - seen.jobs, self._starts()
        if not 0 < done <= starts:
            raise PeerFailed(f"{done:,} jobs are settled and {starts:,} handlers began: no rate")
        worker, server = (1000 * seconds / done for seconds in used)
        return Drained(done / self._age(seen.at), seen.jobs > backlog, worker, server, open_ones)

    def _starts(self) -> int:
        return marks.count(self.folder, "start")

    def _cpu(self) -> tuple[float, float]:
        """Return the processor time of the workers, and of the server."""
        server = processes.cpu_seconds([self.bench.server.pid])
        return processes.cpu_seconds(self.workers.pids), server

    def _wait_for_settlement(self, backlog: int, longest: float) -> Left:
        """Ask the store until only the backlog is left or time is up; most of the time, wait."""
        seen = store.left(self.connection, self.bench.system)
        while seen.jobs > backlog and self._age(seen.at) < longest:
            time.sleep(max(0.002, 3e-9 * (time.monotonic_ns() - seen.at)))
            seen = store.left(self.connection, self.bench.system)
        return seen

    def _age(self, at: int) -> float:
        """Return the seconds from the first handler's start to a moment."""
        firsts = []
        for file in self.folder.glob("start-*"):
            with file.open("rb") as content:
                firsts.append(int.from_bytes(content.read(8), "little"))
        return (at - min(firsts)) / 1e9


def _wait_for_latencies(workers: Workers, folder: Path, count: int) -> None:
    workers.wait_until(
        lambda: marks.count(folder, "latency") >= count, "the last job's start", _LAST_ONES
    )


def _rate(answer: dict[str, float]) -> float:
    return answer["count"] / answer["seconds"]


@contextmanager
def _fresh(bench: Bench) -> Iterator[tuple[str, Path]]:
    """Yield a database with the system's tables, and a folder for marks; both are gone after."""
    url = store.make_database(bench.server, _DATABASE, _TEMPLATE)
    with _folder() as folder:
        yield url, folder
    store.drop_database(bench.server, _DATABASE)


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder in memory, where there is one: marks shall not wait for a disk."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder made there is private
    place = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as folder:
        yield Path(folder)
