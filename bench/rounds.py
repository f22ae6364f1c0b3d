"""All systems take turns in short rounds, each in a separate folder that is deleted afterwards.

Every other round runs in reverse, so that no system always follows the same other one. The floor is
measured before and after what is judged by it, because it is over in a fraction of the time.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import Progress

from bench import engine_sqlite, floor_sqlite, huey_sqlite, trellis_sqlite
from bench.figures import Figure, Measured, Results, System
from bench.machine import Neighbours, Weather, sync_milliseconds
from bench.sizes import BATCH, CALLERS, PAGE, Sizes

#: As many jobs as there is time for.
_ANY: Final = sys.maxsize


class Part(NamedTuple):
    """One turn in a round."""

    what: str
    measure: Callable[[Path, Sizes], Measured]


def floor(folder: Path, sizes: Sizes) -> Measured:
    """Measure the bare statements."""
    created, drained = floor_sqlite.run(folder, sizes.many, BATCH)
    return {
        System.FLOOR: {
            Figure.ONE: [floor_sqlite.run_create(folder, _ANY, 1, sizes.seconds)],
            Figure.CALLERS: [floor_sqlite.run_create(folder, _ANY, CALLERS, sizes.seconds)],
            Figure.MANY: [created],
            Figure.DRAIN: [drained],
            # One writer at a time: bare statements gain nothing from a second process.
            Figure.DRAIN_2: [drained],
        },
        System.FLOOR_OF_PAGES: {Figure.MANY: [floor_sqlite.run_create(folder, sizes.many, PAGE)]},
    }


def port(folder: Path, sizes: Sizes) -> Measured:
    """Measure the engine without client and worker, beside a separate floor."""
    created, drained = floor_sqlite.run(folder, sizes.port, BATCH)
    ours = asyncio.run(engine_sqlite.measure(folder, sizes.port, BATCH))
    figures = (Figure.PORT_CREATE, Figure.PORT_DRAIN, Figure.PORT_SHARED)
    return {
        System.ENGINE: {figure: [rate] for figure, rate in zip(figures, ours, strict=True)},
        System.FLOOR: {
            figure: [rate]
            for figure, rate in zip(figures, (created, drained, created), strict=True)
        },
    }


TRELLIS: Final = (
    Part("the engine through its port", port),
    Part("Trellis: create to start", trellis_sqlite.latency),
    Part("Trellis: drain with 2 processes", trellis_sqlite.drain_with_two),
    Part("the floor", floor),
    Part("Trellis: create, drain with 1 process", trellis_sqlite.create_and_drain),
    Part("the floor", floor),
)
HUEY: Final = (
    Part("Huey with fsync", huey_sqlite.synced),
    Part("Huey without fsync", huey_sqlite.unsynced),
)


def run_all(sizes: Sizes, folder: Path) -> Results:
    """Run all rounds; systems that are not installed are named with the results."""
    missing = huey_sqlite.why_absent()
    parts = TRELLIS if missing else TRELLIS + HUEY
    rounds: list[Measured] = []
    weather: list[Weather] = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=sizes.rounds * len(parts))
        for number in range(sizes.rounds):
            neighbours, sync = Neighbours(), sync_milliseconds(folder)
            rounds.append({})
            for part in parts if number % 2 else reversed(parts):
                progress.update(task, description=f"round {number + 1}: {part.what}")
                _take_turn(part, sizes, folder, rounds[-1])
                progress.advance(task)
            weather.append(Weather(sync, neighbours.cores()))
    absent = dict.fromkeys((System.HUEY_SYNCED, System.HUEY), missing) if missing else {}
    return Results(rounds, weather, absent)


def _take_turn(part: Part, sizes: Sizes, folder: Path, measured: Measured) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as turn:
        for system, figures in part.measure(Path(turn), sizes).items():
            for figure, values in figures.items():
                measured.setdefault(system, {}).setdefault(figure, []).extend(values)
