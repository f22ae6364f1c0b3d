"""`make bench`: Trellis on SQLite beside bare statements and beside Huey, in one run, as one table.

What each figure means: docs/performance.md. `make bench ARGS=--quick` tries it in half a minute.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import bars, machine, report
from bench.engine_sqlite import decide_microseconds
from bench.figures import Results
from bench.programs import ROOT
from bench.rounds import run_all
from bench.sizes import FULL, QUICK, Sizes

_WIDTH: Final = 110


def main() -> None:
    """Run the benchmark."""
    options = _options()
    sizes = QUICK if options.quick else FULL
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    options.folder.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC)
    results = run_all(sizes, options.folder)
    name = f"{began:%Y-%m-%dT%H-%M-%SZ}{'-quick' if options.quick else ''}.json"
    _report(results, sizes, options.folder, options.results / name)
    if options.quick:
        print("A quick run tries everything out; it is too short for its rates to count.")


def _report(results: Results, sizes: Sizes, folder: Path, file: Path) -> None:
    facts = {
        **machine.facts(folder),
        **machine.in_words(results.weather),
        "decide": f"{decide_microseconds():.2f} µs a decision",
        "durability": "WAL, synchronous=FULL, journal and fences on",
    }
    verdicts = bars.judge(results)
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=_WIDTH)
    report.show(results, verdicts, facts, console)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(report.as_json(results, verdicts, facts, sizes), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few jobs, one round")
    parser.add_argument("--rounds", type=int, help=f"rounds of every system ({FULL.rounds})")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build",
        help="where the databases go: the disk that is measured (build)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "bench" / "results",
        help="where every round is written (bench/results)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
