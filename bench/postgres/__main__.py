"""`make bench-postgres`: what each guarantee costs on PostgreSQL, and what growing does to it.

Everything is measured in turns on one server with `fsync` and `synchronous_commit` on, so read the
ratios. `--quick` tries everything in a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg

from bench import machine
from bench.peers import server as servers
from bench.peers import store
from bench.peers.neighbours import Neighbours
from bench.peers.server import Server
from bench.peers.trellis.app import migrate
from bench.postgres import app, engine, guarantees, working
from bench.postgres.guarantees import Case
from bench.programs import ROOT
from bench.rows import Report
from tests.harness.age.filling import add_backlog, add_finished

_DATABASE: Final = "bench"
_TEMPLATE: Final = "bench_template"
_RESULTS: Final = ROOT / "bench" / "results"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 3
    jobs: int = 40_000
    seconds: float = 3.0
    backlogs: Sequence[int] = (10_000, 100_000, 1_000_000)
    histories: Sequence[int] = (0, 1_000_000)
    processes: Sequence[int] = (1, 2, 4)
    idle: int = 20
    idle_seconds: float = 20.0
    tenants: Sequence[int] = (0, 1, 10_000)


QUICK: Final = Sizes(1, 2000, 0.3, (1000, 5000), (0, 5000), (1, 2), 2, 1.0, (0, 500))


@contextmanager
def _fresh(server: Server) -> Iterator[str]:
    """Yield a database with the tables of Trellis; it is dropped afterwards."""
    yield store.make_database(server, _DATABASE, _TEMPLATE)
    store.drop_database(server, _DATABASE)


async def _drain_case(url: str, case: Case, jobs: int) -> float:
    async with engine.opened(url, case.without) as opened:
        await engine.fill(opened, url, case.types, jobs)
        return (await engine.drain(opened, case.types, jobs)).rate


def measure_guarantees(server: Server, sizes: Sizes, report: Report) -> None:
    """Drain with everything on, and with one thing after the other left out."""
    print("Each guarantee, by the engine alone (claims of 500, completions beside them):")
    for _ in range(sizes.rounds):
        for case in guarantees.ALL:
            with _fresh(server) as url:
                rate = asyncio.run(_drain_case(url, case, sizes.jobs))
                report.add(case.name, rate)
    first = guarantees.ALL[0].name
    for case in guarantees.ALL:
        report.show(case.name, "jobs/s", None if case.name == first else first)


def measure_waking(server: Server, sizes: Sizes, report: Report) -> None:
    """Create single jobs, with NOTIFY and without."""
    print("Single creates by 32 callers:")
    notified, silent = "with NOTIFY", "without NOTIFY"
    for _ in range(sizes.rounds):
        for name in (notified, silent):
            with _fresh(server) as url:
                rate = working.run_singly(url, sizes.seconds, notify=name == notified)
                report.add(name, rate)
    report.show(silent, "jobs/s")
    report.show(notified, "jobs/s", silent)


def measure_growth(server: Server, sizes: Sizes, report: Report) -> None:
    """Time claims and completions of 500 with more and more in the tables."""
    print("Claims and completions of 500, with more and more in the tables:")
    jobs = min(sizes.jobs, 10_000)
    cases = [(f"backlog of {size:,}", size, 0) for size in sizes.backlogs]
    cases += [(f"history of {size:,}", 0, size) for size in sizes.histories]
    for name, backlog, history in cases:
        for _ in range(sizes.rounds):
            with _fresh(server) as url:
                with psycopg.connect(url, autocommit=True) as sql:
                    add_finished(sql, history)
                asyncio.run(_prepare(url))
                claim, complete = asyncio.run(_time_with(url, backlog, jobs))
                report.add(f"{name}, claim", claim)
                report.add(f"{name}, completion", complete)
        for what in ("claim", "completion"):
            report.show(f"{name}, {what}", "ms", f"{cases[0][0]}, {what}")


async def _prepare(url: str) -> None:
    """Make a first job, so that its lane and its policy are there."""
    async with engine.opened(url) as opened:
        await engine.fill(opened, url, app.of_one, 1000)
        await engine.drain(opened, app.of_one, 1000)


async def _time_with(url: str, backlog: int, jobs: int) -> tuple[float, float]:
    kind = app.of_one[0]._job_type
    async with engine.opened(url) as opened:
        await engine.fill(opened, url, app.of_one, jobs)
        with psycopg.connect(url, autocommit=True) as sql:
            add_backlog(sql, backlog, (kind.service, kind.queue, kind.name))
        await asyncio.to_thread(store.settle, url)
        drained = await engine.drain(opened, app.of_one, jobs)
    return statistics.median(drained.claims), statistics.median(drained.completions)


def measure_tenants(server: Server, sizes: Sizes, report: Report) -> None:
    """Create and drain jobs of more and more tenants that share a queue fairly."""
    print("Tenants that share a queue:")
    for _ in range(sizes.rounds):
        for tenants in sizes.tenants:
            with _fresh(server) as url:
                created, claims = asyncio.run(_time_tenants(url, tenants, sizes.jobs))
            report.add(f"{tenants:,} tenants, create", created)
            half = max(1, len(claims) // 2)
            report.add(f"{tenants:,} tenants, claim", statistics.median(claims))
            report.add(f"{tenants:,} tenants, first claims", statistics.median(claims[:half]))
            report.add(f"{tenants:,} tenants, last claims", statistics.median(claims[-half:]))
    for tenants in sizes.tenants:
        report.show(f"{tenants:,} tenants, create", "jobs/s", "0 tenants, create")
        for what in ("claim", "first claims", "last claims"):
            report.show(f"{tenants:,} tenants, {what}", "ms", "0 tenants, claim")
    most = f"{max(sizes.tenants):,} tenants"
    growth = report.median(f"{most}, last claims") / report.median(f"{most}, first claims")
    report.judge(f"claims of {most} stay flat: last to first < 1.5", growth, holds=growth < 1.5)


async def _time_tenants(url: str, tenants: int, jobs: int) -> tuple[float, list[float]]:
    async with engine.opened(url) as opened:
        began = time.perf_counter()
        await engine.fill(opened, url, app.of_one, jobs, tenants)
        created = jobs / (time.perf_counter() - began)
        drained = await engine.drain(opened, app.of_one, jobs)
    return created, drained.claims


def measure_workers(server: Server, sizes: Sizes, report: Report) -> None:
    """Drain by real workers: more processes, more types."""
    print("Drains by `trellis worker`:")
    ways = [(f"processes: {count}", "one", app.of_one, count) for count in sizes.processes]
    ways.append(("fifty types, 1 process", "fifty", app.of_fifty, 1))
    for _ in range(sizes.rounds):
        for name, service, types, count in ways:
            with _fresh(server) as url:
                asyncio.run(_fill(url, types, sizes.jobs))
                report.add(name, working.drain(url, service, sizes.jobs, count))
    for name, *_ in ways:
        report.show(name, "jobs/s", None if name == ways[0][0] else ways[0][0])
    share = report.median("fifty types, 1 process") / report.median(ways[0][0])
    report.judge("fifty types ≥ 0.8 of one type", share, holds=share >= 0.8)


async def _fill(url: str, types: engine.Jobs, jobs: int) -> None:
    async with engine.opened(url) as opened:
        await engine.fill(opened, url, types, jobs)


def measure_idling(server: Server, sizes: Sizes, report: Report) -> None:
    """Let workers wait for work that does not come."""
    print(f"{sizes.idle} workers with nothing to do:")
    with _fresh(server) as url:
        served, worked = working.idle(server, url, sizes.idle, sizes.idle_seconds)
    report.add("cores of the server", served)
    report.add("cores of the workers", worked)
    report.show("cores of the server", "cores")
    report.show("cores of the workers", "cores")
    bar = f"{sizes.idle} idle workers < 2 % of a core of the server"
    report.judge(bar, served, holds=served < 0.02)


def main() -> None:
    """Measure everything, print it, and keep the rounds."""
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where rounds are kept")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes()
    report, began = Report(), datetime.now(UTC)
    with servers.running() as server:
        neighbours = Neighbours(server.pid)
        asyncio.run(migrate(store.make_database(server, _TEMPLATE)))
        for measure in (
            measure_guarantees, measure_waking, measure_growth, measure_tenants, measure_workers,
            measure_idling,
        ):  # fmt: skip
            measure(server, sizes, report)
        others = neighbours.cores()
        about = {**machine.facts(server.folder), "PostgreSQL": server.version}
    print(f"other programs kept {others:.2f} cores busy")
    if not options.quick:
        kept = {"machine": about, "others": others, "sizes": asdict(sizes), "rounds": report.rows}
        file = options.results / f"postgres-{began:%Y-%m-%dT%H-%M-%SZ}.json"
        file.write_text(json.dumps({**kept, "verdicts": report.verdicts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
