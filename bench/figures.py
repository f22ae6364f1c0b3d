"""The systems and figures that are measured, and how the values of many rounds become one figure.

A round gives a list of values per system and figure: one rate, or many latencies. Machines are
noisy for seconds at a time, so ratios are taken within each round and their median counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.machine import Weather


class System(StrEnum):
    """A system that is measured."""

    TRELLIS = "Trellis"
    ENGINE = "engine"
    FLOOR = "floor"
    FLOOR_OF_PAGES = "floor of pages"
    HUEY_SYNCED = "Huey, fsync"
    HUEY = "Huey, no fsync"


class Figure(StrEnum):
    """What is measured: jobs per second, but for the latency, which is in milliseconds."""

    ONE = "create, one by one"
    CALLERS = "create, 32 callers"
    MANY = "create_many"
    DRAIN = "drain, 1 process"
    DRAIN_2 = "drain, 2 processes"
    LATENCY = "create to start, ms"
    PORT_CREATE = "port: create, 100 per call"
    PORT_DRAIN = "port: drain, 100 per batch"
    PORT_SHARED = "port: create, two callers"


Measured = dict[System, dict[Figure, list[float]]]


@dataclass(frozen=True, slots=True)
class Series:
    """One figure of one system over all rounds."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def middles(self) -> list[float]:
        """The median of each round."""
        return [statistics.median(values) for values in self.rounds]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.middles)

    def percentile(self, percent: int) -> float:
        """Return the value below which this share of all values lies, all rounds together."""
        values = [value for one in self.rounds for value in one]
        if len(values) == 1:
            return values[0]
        return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]

    def ratio_to(self, other: Series) -> float:
        """Return the median of the rounds' ratios."""
        pairs = zip(self.middles, other.middles, strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)


@dataclass(frozen=True, slots=True)
class Results:
    """All rounds, the load of the machine during each, and the systems that were not measured."""

    rounds: Sequence[Measured]
    weather: Sequence[Weather]
    #: Why a system has no figures at all.
    absent: Mapping[System, str]

    def series(self, system: System, figure: Figure) -> Series | None:
        """Return a figure; None if this system has no such thing, or is absent."""
        values = [one.get(system, {}).get(figure) for one in self.rounds]
        found = tuple(tuple(each) for each in values if each is not None)
        return Series(found) if found else None
