"""`make bench-peers`: Trellis on PostgreSQL beside its peers, in one run on one server.

Peers run at their fastest documented settings, Trellis with its defaults; `fsync` and
`synchronous_commit` are on for all. `--quick` tries everything in under a minute.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import machine
from bench.peers import bars, chart, report, server, systems
from bench.peers.figures import Results
from bench.peers.rounds import run_all
from bench.peers.sizes import FULL, QUICK, Sizes
from bench.programs import ROOT

CHART: Final = ROOT / "docs" / "performance-peers.svg"
_WIDTH: Final = 130
_QUICK_ONES: Final = frozenset({"trellis", "pgqueuer"})


def main() -> None:
    """Run the benchmark."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise SystemExit(
            "This benchmark reads processor time and memory from /proc: it needs Linux."
        )
    options = _options()
    sizes = QUICK if options.quick else FULL
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    quick = (lambda system: system.key in _QUICK_ONES) if options.quick else (lambda _: True)
    chosen = systems.chosen(options.only, quick)
    began = datetime.now(UTC)
    with server.running() as running:
        facts = _machine(running)
        results = run_all(chosen, running, sizes)
    name = f"peers-{began:%Y-%m-%dT%H-%M-%SZ}{'-quick' if options.quick else ''}.json"
    took = (datetime.now(UTC) - began).total_seconds()
    facts |= {**_facts(results), "took": f"{took / 60:.1f} minutes"}
    _report(results, sizes, facts, options, options.results / name)
    if options.quick:
        print("A quick run tries everything out; neither its rates nor its verdicts count.")


def _report(
    results: Results, sizes: Sizes, facts: dict[str, str], options: argparse.Namespace, file: Path
) -> None:
    verdicts = bars.judge(results)
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=_WIDTH)
    report.show(results, verdicts, facts, console)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(report.as_json(results, verdicts, facts, sizes), encoding="utf-8")
    is_whole = not (options.quick or options.only or options.rounds)
    place = options.chart or (CHART if is_whole else None)
    if place:
        place.write_text(chart.draw(results), encoding="utf-8")


def _machine(running: server.Server) -> dict[str, str]:
    found = machine.facts(running.folder)
    names = ("processor", "system", "file system", "Python", "Trellis")
    settings = ", ".join(f"{name}={text}" for name, text in server.SETTINGS.items())
    return {
        **{name: found[name] for name in names},
        "PostgreSQL": f"{running.version}, {settings}",
    }


def _facts(results: Results) -> dict[str, str]:
    weather = [machine.Weather(one.sync, one.others) for one in results.weather]
    peers = [system for system in systems.PEERS if system.name in results.systems]
    return {
        **{system.name: systems.version(system) for system in peers},
        **(machine.in_words(weather) if weather else {}),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few jobs, few peers, one round")
    parser.add_argument("--only", help="these systems only, as in trellis,pgqueuer")
    parser.add_argument("--rounds", type=int, help=f"rounds of every system ({FULL.rounds})")
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "bench" / "results",
        help="where every round is written (bench/results)",
    )
    parser.add_argument("--chart", type=Path, help="where to draw the chart (a full run: docs)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
