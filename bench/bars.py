"""The bars that the figures must reach: each is PASS or MISS, and what was not measured is a MISS.

Trellis runs with its defaults, one worker process. Huey counts with the better of its two settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from bench.figures import Figure, Results, Series, System

DRAIN_RATE: Final = 30_000
DRAIN_OF_FLOOR: Final = 0.40
MANY_OF_FLOOR: Final = 0.50
TIMES_HUEY_SYNCED: Final = 8.0
PORT_OF_FLOOR: Final = 0.60


class Verdict(NamedTuple):
    """One bar and what was seen."""

    bar: str
    seen: str
    is_met: bool

    @property
    def word(self) -> str:
        """The verdict in one word."""
        return "PASS" if self.is_met else "MISS"


def judge(results: Results) -> list[Verdict]:
    """Return a verdict on every bar."""
    return [
        _drain(results),
        _of_floor(results, System.TRELLIS, Figure.MANY, MANY_OF_FLOOR),
        _beside_huey(
            results, System.HUEY_SYNCED, f"≥ {TIMES_HUEY_SYNCED:g} ×", TIMES_HUEY_SYNCED.__le__
        ),
        _beside_huey(results, System.HUEY, ">", (1.0).__lt__),
        _of_floor(results, System.ENGINE, Figure.PORT_CREATE, PORT_OF_FLOOR),
        _of_floor(results, System.ENGINE, Figure.PORT_DRAIN, PORT_OF_FLOOR),
    ]


def _drain(results: Results) -> Verdict:
    bar = f"drain ≥ {DRAIN_RATE:,} jobs/s, or ≥ {DRAIN_OF_FLOOR:.2f} of the floor"
    ours, floor = (
        results.series(system, Figure.DRAIN) for system in (System.TRELLIS, System.FLOOR)
    )
    if ours is None or floor is None:
        return Verdict(bar, "not measured", False)
    ratio = ours.ratio_to(floor)
    is_met = ours.median >= DRAIN_RATE or ratio >= DRAIN_OF_FLOOR
    return Verdict(bar, f"{ours.median:,.0f} jobs/s, {ratio:.2f}", is_met)


def _of_floor(results: Results, system: System, figure: Figure, least: float) -> Verdict:
    bar = f"{figure} ≥ {least:.2f} of the floor"
    ours, floor = results.series(system, figure), results.series(System.FLOOR, figure)
    if ours is None or floor is None:
        return Verdict(bar, "not measured", False)
    return Verdict(bar, f"{ours.ratio_to(floor):.2f}", ours.ratio_to(floor) >= least)


def _beside_huey(
    results: Results, system: System, more: str, is_enough: Callable[[float], bool]
) -> Verdict:
    bar = f"drain {more} {system}"
    ours, best = results.series(System.TRELLIS, Figure.DRAIN), _best_drain(results, system)
    if ours is None or best is None:
        return Verdict(bar, f"not measured: {results.absent.get(system, 'no figures')}", False)
    figure, theirs = best
    ratio = ours.ratio_to(theirs)
    return Verdict(bar, f"{ratio:.1f} × Huey's {figure}", is_enough(ratio))


def _best_drain(results: Results, system: System) -> tuple[Figure, Series] | None:
    found = [(each, results.series(system, each)) for each in (Figure.DRAIN, Figure.DRAIN_2)]
    drains = [(figure, series) for figure, series in found if series is not None]
    return max(drains, key=lambda one: one[1].median, default=None)
