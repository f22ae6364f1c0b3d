"""`make bench`: our engines beside bare statements, in one run, as a table of ratios.

Machines are noisy for seconds at a time, so floor and engine take turns in short rounds and the
median of the rounds' ratios is what counts. `--jobs` and `--rounds` make it longer or shorter.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sqlite3
import statistics
import tempfile
import timeit
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench import engine_sqlite, floor_sqlite
from trellis.core.commands import Claim, Complete
from trellis.core.job import Fence, JobRecord, SessionId, define
from trellis.core.lifecycle import Transition, born, decide

BAR = 0.60
BATCH = 100


class Row(NamedTuple):
    """One measured thing beside its floor."""

    what: str
    #: The ratio it must reach; None is not judged.
    bar: float | None
    floor: list[float]
    ours: list[float]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(
            ours / floor for ours, floor in zip(self.ours, self.floor, strict=True)
        )


def measure(jobs: int, rounds: int, folder: Path) -> list[Row]:
    """Let floor and engine take turns."""
    create = Row("create, 100 per call", BAR, [], [])
    drain = Row("drain, 100 per batch, two batches in hand", BAR, [], [])
    # Two callers share commits of 200 with the floor's 100 beside it: shown, not judged.
    shared = Row("create, 100 per call, two callers", None, [], [])
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            floor = floor_sqlite.run(Path(place), jobs, BATCH)
            ours = asyncio.run(engine_sqlite.measure(Path(place), jobs, BATCH))
        bare_rates = (*floor, floor[0])
        for row, bare, kept in zip((create, drain, shared), bare_rates, ours, strict=True):
            row.floor.append(bare)
            row.ours.append(kept)
    return [create, drain, shared]


def decide_microseconds() -> float:
    """Return what one decision about a completion costs."""
    (new,) = engine_sqlite.new_jobs(1)
    fence = Fence(SessionId(1), 2)
    waiting = JobRecord(define(new, 1, 0), born(0, 0)[1])
    claimed = decide(waiting, Claim(fence), 0)
    if not isinstance(claimed, Transition):
        raise TypeError(claimed)
    record, command = JobRecord(claimed.definition, claimed.head), Complete(fence, "null")
    count = 20_000
    return (
        min(timeit.repeat(lambda: decide(record, command, 1), number=count, repeat=5)) / count * 1e6
    )


def show(rows: list[Row], decision: float, console: Console) -> None:
    """Print the table."""
    table = Table(title="SQLite engine through its port, beside bare statements (jobs/s, medians)")
    for heading in ("", "floor", "engine", "engine / floor", "bar", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        verdict = "" if row.bar is None else "PASS" if row.ratio >= row.bar else "MISS"
        table.add_row(
            row.what,
            f"{statistics.median(row.floor):,.0f}",
            f"{statistics.median(row.ours):,.0f}",
            f"{row.ratio:.2f}",
            "" if row.bar is None else f"{row.bar:.2f}",
            verdict,
        )
    console.print(table)
    console.print(f"decide: {decision:.2f} µs")
    console.print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{platform.machine()}; WAL, synchronous=FULL, journal and fences on"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=8_000, help="jobs per round")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of floor and engine")
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where the files go: the disk that is measured"
    )
    options = parser.parse_args()
    rows = measure(options.jobs, options.rounds, options.folder)
    show(rows, decide_microseconds(), Console())


if __name__ == "__main__":
    main()
