"""The figures that are measured, and how the rounds become one figure.

A figure of a system is a list of values per round: one rate, or many latencies. Machines are noisy
for seconds at a time, so a ratio is taken within each round in which both were measured, and the
median of those ratios counts. A round without a value stays empty: nothing is made up for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from bench.figures import Series


class Figure(StrEnum):
    """What is measured: jobs per second unless the name says otherwise."""

    ONE = "create, one by one"
    CALLERS = "create, 32 callers"
    MANY = "create, bulk"
    DRAIN = "drain, 1 process"
    DRAIN_2 = "drain, 2 processes"
    DEEP = "drain, 1 process, backlog behind"
    LATENCY = "create to start, ms"
    CPU = "CPU, s per 1,000 jobs"
    CPU_WORKER = "  of it the worker"
    CPU_SERVER = "  of it the server"
    MEMORY = "idle worker, MB"
    CONNECTIONS = "connections of a worker"


#: Of these, less is better.
COSTS: Final = frozenset(
    {
        Figure.LATENCY,
        Figure.CPU,
        Figure.CPU_WORKER,
        Figure.CPU_SERVER,
        Figure.MEMORY,
        Figure.CONNECTIONS,
    }
)

Values = dict[Figure, list[float]]


class Failure(NamedTuple):
    """A part of a system's turn that gave no figures."""

    round: int
    who: str
    part: str
    why: str
    figures: tuple[Figure, ...]


class Weather(NamedTuple):
    """What a system's turn was measured in."""

    round: int
    who: str
    #: What one write of 8 kB with its fdatasync took just before, in milliseconds.
    sync: float
    #: How many cores other programs than the benchmark kept busy.
    others: float


class Capped(NamedTuple):
    """A figure that is the rate of what was done when time was up."""

    who: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Results:
    """All rounds, the load of the machine during each, and the systems that were not measured."""

    #: Values per round and system.
    rounds: Sequence[Mapping[str, Values]]
    systems: Sequence[str]
    python: frozenset[str]
    absent: Mapping[str, str]
    failures: Sequence[Failure] = ()
    weather: Sequence[Weather] = ()
    capped: frozenset[Capped] = frozenset()
    #: The system that is judged, whether it was measured or not.
    ours: str = "Trellis"

    @property
    def peers(self) -> list[str]:
        """The systems it is compared with."""
        return [who for who in self.systems if who != self.ours]

    def series(self, who: str, figure: Figure) -> Series | None:
        """Return a figure over all rounds that have it; None if there is none."""
        found = [one.get(who, {}).get(figure) for one in self.rounds]
        values = tuple(tuple(each) for each in found if each)
        return Series(values) if values else None

    def ratio(self, figure: Figure, ours: str, theirs: str) -> float | None:
        """Return the median of the ratios within rounds; None without a common round."""
        return self.ratio_of((ours, figure), (theirs, figure))

    def ratio_of(self, one: tuple[str, Figure], other: tuple[str, Figure]) -> float | None:
        """Return the median ratio of two figures, which may be of the same system."""
        ratios = []
        for each in self.rounds:
            ours, theirs = (each.get(who, {}).get(figure) for who, figure in (one, other))
            if ours and theirs and statistics.median(theirs):
                ratios.append(statistics.median(ours) / statistics.median(theirs))
        return statistics.median(ratios) if ratios else None

    def best(self, figure: Figure, among: Sequence[str]) -> str | None:
        """Return the system with the best median; None if no system has one."""
        found = {who: series.median for who in among if (series := self.series(who, figure))}
        if not found:
            return None
        pick = min if figure in COSTS else max
        return pick(found, key=lambda who: found[who])

    def why_missing(self, who: str, figure: Figure) -> str:
        """Return why a system has no such figure."""
        if who not in self.systems:
            return "left out of this run"
        if who in self.absent:
            return self.absent[who]
        reasons = [each.why for each in self.failures if each.who == who and figure in each.figures]
        return f"failed: {reasons[-1]}" if reasons else "has none"


def spread(series: Series) -> tuple[float, float]:
    """Return the lowest and the highest round."""
    return min(series.middles), max(series.middles)


def is_apart(better: Series, worse: Series, figure: Figure) -> bool:
    """Return whether even the worst round of one is better than the best round of the other."""
    if figure in COSTS:
        return max(better.middles) < min(worse.middles)
    return min(better.middles) > max(worse.middles)
