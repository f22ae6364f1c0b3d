"""All systems take turns on one server, every other round backwards.

A failure of one system is recorded as its failure; the others continue.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import psycopg
from rich.console import Console
from rich.progress import Progress

from bench.machine import sync_milliseconds
from bench.peers import measure, systems
from bench.peers.figures import Capped, Failure, Figure, Results, Values, Weather
from bench.peers.measure import Bench, Drained
from bench.peers.neighbours import Neighbours
from bench.peers.server import Server
from bench.peers.sizes import Sizes
from bench.peers.systems import Language, System
from bench.peers.workers import PeerFailed
from bench.programs import ROOT

FAILURES: Final = (
    PeerFailed, LookupError, OSError, ValueError, psycopg.Error, subprocess.SubprocessError,
)  # fmt: skip
Found = tuple[Values, frozenset[Figure]]


class Part(NamedTuple):
    """One part of a system's turn."""

    what: str
    figures: tuple[Figure, ...]
    measure: Callable[[Bench], Found]


def _create_one(bench: Bench) -> Found:
    return {Figure.ONE: [measure.create(bench, "create-one")]}, frozenset()


def _create_by_callers(bench: Bench) -> Found:
    return {Figure.CALLERS: [measure.create(bench, "create-32")]}, frozenset()


def _create_many(bench: Bench) -> Found:
    values = {Figure.MANY: [measure.create_many(bench)]} if bench.system.has_bulk else {}
    return values, frozenset()


def _drain(bench: Bench) -> Found:
    drained = measure.drain(bench, 1)
    values = {
        Figure.DRAIN: [drained.rate],
        Figure.CPU: [drained.worker + drained.server],
        Figure.CPU_WORKER: [drained.worker],
        Figure.CPU_SERVER: [drained.server],
        Figure.CONNECTIONS: [float(drained.connections)],
    }
    return values, _capped(Figure.DRAIN, drained)


def _drain_by_two(bench: Bench) -> Found:
    drained = measure.drain(bench, 2)
    return {Figure.DRAIN_2: [drained.rate]}, _capped(Figure.DRAIN_2, drained)


def _drain_deep(bench: Bench) -> Found:
    drained = measure.drain(bench, 1, bench.sizes.backlog)
    return {Figure.DEEP: [drained.rate]}, _capped(Figure.DEEP, drained)


def _latency(bench: Bench) -> Found:
    return measure.latency(bench), frozenset()


def _capped(figure: Figure, drained: Drained) -> frozenset[Figure]:
    return frozenset({figure}) if drained.is_capped else frozenset()


_OF_DRAIN: Final = (
    Figure.DRAIN, Figure.CPU, Figure.CPU_WORKER, Figure.CPU_SERVER, Figure.CONNECTIONS,
)  # fmt: skip
PARTS: Final = (
    Part("create one by one", (Figure.ONE,), _create_one),
    Part("create with 32 callers", (Figure.CALLERS,), _create_by_callers),
    Part("create in bulk", (Figure.MANY,), _create_many),
    Part("drain with 1 process", _OF_DRAIN, _drain),
    Part("drain with 2 processes", (Figure.DRAIN_2,), _drain_by_two),
    Part("create to start", (Figure.LATENCY, Figure.MEMORY), _latency),
    Part("drain with a backlog", (Figure.DEEP,), _drain_deep),
)


class Book:
    """What the turns write down."""

    def __init__(self, rounds: int) -> None:
        self.rounds: list[dict[str, Values]] = [{} for _ in range(rounds)]
        self.failures: list[Failure] = []
        self.weather: list[Weather] = []
        self.capped: set[Capped] = set()

    def keep(self, number: int, who: str, found: Found) -> None:
        """Keep the figures of one part."""
        values, capped = found
        self.rounds[number].setdefault(who, {}).update(values)
        self.capped |= {Capped(who, figure) for figure in capped}


def run_all(
    chosen: Sequence[System], server: Server, sizes: Sizes, parts: Sequence[Part] = PARTS
) -> Results:
    """Run all rounds; systems that cannot be measured are named with the results."""
    absent = {system.name: why for system in chosen if (why := systems.why_not(system))}
    present = [system for system in chosen if system.name not in absent]
    book = Book(sizes.rounds)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=sizes.rounds * len(present) * len(parts))
        for number in range(sizes.rounds):
            for system in _order(present, number):
                bench = Bench(server, system, sizes)
                for what in take_turn(book, number, bench, parts):
                    progress.update(task, description=f"round {number + 1}: {system.name}: {what}")
                    progress.advance(task)
    return Results(
        book.rounds,
        [system.name for system in chosen],
        frozenset(system.name for system in chosen if system.language is Language.PYTHON),
        absent,
        book.failures,
        book.weather,
        frozenset(book.capped),
    )


def take_turn(book: Book, number: int, bench: Bench, parts: Sequence[Part]) -> Iterator[str]:
    """Measure one system once; yield each part's name when it begins."""
    who = bench.system.name
    neighbours, sync = Neighbours(bench.server.pid), sync_milliseconds(bench.server.folder)
    try:
        measure.prepare(bench)
        for part in parts:
            yield part.what
            try:
                book.keep(number, who, part.measure(bench))
            except FAILURES as error:
                book.failures.append(_failure(number, who, part.what, part.figures, error))
        measure.clear(bench)
    except FAILURES as error:
        book.failures.append(_failure(number, who, "set-up", tuple(Figure), error))
    book.weather.append(Weather(number, who, sync, neighbours.cores()))


def _failure(
    number: int, who: str, part: str, figures: tuple[Figure, ...], error: Exception
) -> Failure:
    text = str(error).strip().replace(str(ROOT), ".") or type(error).__name__
    return Failure(number, who, part, " ".join(text.split()), figures)


def _order(present: Sequence[System], number: int) -> Sequence[System]:
    return present if number % 2 == 0 else list(reversed(present))
