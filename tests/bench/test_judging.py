"""Ratios are taken within rounds; a bar that was not measured is a bar that was missed."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from bench import huey_sqlite
from bench.bars import judge
from bench.figures import Figure, Measured, Results, Series, System
from bench.machine import Weather
from bench.report import table


def a_round(
    drain: float = 29_000.0,
    floor: float = 70_000.0,
    many: float = 60_000.0,
    huey_synced: float = 3_600.0,
    huey: float = 11_000.0,
) -> Measured:
    return {
        System.TRELLIS: {Figure.DRAIN: [drain], Figure.MANY: [many]},
        System.FLOOR: {Figure.DRAIN: [floor], Figure.MANY: [100_000.0]},
        System.HUEY_SYNCED: {Figure.DRAIN: [huey_synced], Figure.DRAIN_2: [huey_synced / 2]},
        System.HUEY: {Figure.DRAIN: [huey], Figure.DRAIN_2: [huey + 1_000]},
    }


def results(*rounds: Measured, absent: dict[System, str] | None = None) -> Results:
    return Results(rounds, [Weather(0.1, None)] * len(rounds), absent or {})


def verdicts(measured: Measured) -> list[str]:
    return [verdict.word for verdict in judge(results(measured))][:4]


def test_all_bars_are_passed_by_figures_that_reach_them() -> None:
    assert verdicts(a_round()) == ["PASS"] * 4


@pytest.mark.parametrize(
    ("measured", "missed"),
    [
        (a_round(drain=29_999, floor=75_000), 0),
        (a_round(many=49_999), 1),
        (a_round(huey_synced=3_630), 2),
        (a_round(huey=28_000), 3),
    ],
)
def test_a_figure_just_below_its_bar_misses_it(measured: Measured, missed: int) -> None:
    expected = ["PASS"] * 4
    expected[missed] = "MISS"
    assert verdicts(measured) == expected


def test_the_rate_of_the_drain_is_enough_whatever_the_floor_does() -> None:
    assert verdicts(a_round(drain=30_000, floor=200_000))[0] == "PASS"


def test_hueys_better_setting_is_the_one_to_beat() -> None:
    seen = {each.bar: each.seen for each in judge(results(a_round()))}
    assert seen["drain ≥ 8 × Huey, fsync"].endswith("Huey's drain, 1 process")
    assert seen["drain > Huey, no fsync"].endswith("Huey's drain, 2 processes")


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    ours, theirs = Series(((10.0,), (300.0,), (20.0,))), Series(((20.0,), (100.0,), (10.0,)))
    assert ours.ratio_to(theirs) == 2.0


def test_percentiles_are_taken_over_all_rounds_together() -> None:
    halves = Series((tuple(map(float, range(51))), tuple(map(float, range(51, 101)))))
    assert [halves.percentile(each) for each in (50, 95, 99)] == [50.0, 95.0, 99.0]


def test_huey_that_is_not_installed_is_named_in_its_rows_and_misses_its_bars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huey", None)  # importing it fails as if it were not there
    why = huey_sqlite.why_absent()
    assert why == "not installed"
    measured = {system: figures for system, figures in a_round().items() if "Huey" not in system}
    found = results(measured, absent={System.HUEY_SYNCED: why, System.HUEY: why})
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table(found))
    rows = [line for line in capture.get().splitlines() if "Huey" in line]
    assert len(rows) == 12
    assert all("not installed" in row for row in rows)
    seen = [(each.word, each.seen) for each in judge(found) if "Huey" in each.bar]
    assert seen == [("MISS", "not measured: not installed")] * 2
