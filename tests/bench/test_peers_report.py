"""Every system has its row for every figure, in the table, in the chart and in the file."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from rich.console import Console

from bench.peers import chart, report
from bench.peers.bars import judge
from bench.peers.figures import Capped, Failure, Figure, Results, Values, Weather
from bench.peers.sizes import QUICK

SYSTEMS = ("Trellis", "PgQueuer", "Oban", "SAQ")


def found() -> Results:
    """Return a run in which one system is absent, one failed half-way and one was too slow."""
    ours: Values = {figure: [200.0] for figure in Figure}
    theirs: Values = {figure: [100.0] for figure in Figure if figure is not Figure.DEEP}
    return Results(
        [{"Trellis": ours, "PgQueuer": theirs, "SAQ": ours}],
        SYSTEMS,
        frozenset(SYSTEMS),
        {"Oban": "needs Python 3.12, and none was found"},
        [
            Failure(
                0, "PgQueuer", "drain with a backlog", "a worker ended. [killed]", (Figure.DEEP,)
            )
        ],
        [Weather(0, "Trellis", 0.1, 0.0), Weather(0, "PgQueuer", 0.1, 1.5)],
        frozenset({Capped("SAQ", Figure.DRAIN)}),
    )


def rows() -> list[list[str]]:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(report.table(found()))
    lines = [line.strip("│").split("│") for line in capture.get().splitlines() if "│" in line]
    return [[cell.strip() for cell in line] for line in lines]


def test_every_system_has_a_row_for_every_figure() -> None:
    assert [row[1] for row in rows()] == list(SYSTEMS) * len(Figure)
    assert [row[0] for row in rows() if row[0]] == [figure.strip() for figure in Figure]


def test_an_absent_system_says_why_in_each_of_its_rows() -> None:
    told = [row[2] for row in rows() if row[1] == "Oban"]
    assert told == ["needs Python 3.12, and none was found"] * len(Figure)


def test_a_part_that_failed_is_a_row_that_says_so() -> None:
    told = [row[2] for row in rows() if row[1] == "PgQueuer" and "failed" in row[2]]
    assert told == ["failed: a worker ended. [killed]"]


def test_what_was_capped_or_disturbed_is_marked_and_ratios_are_ours_to_theirs() -> None:
    drains = {row[1]: row for row in rows()[12:16]}
    assert drains["SAQ"][2] == "200*"
    assert drains["PgQueuer"][2] == "100~"
    assert drains["PgQueuer"][4] == "2.00"
    assert drains["Trellis"][4] == ""


def test_all_is_printed_as_it_is() -> None:
    console = Console(width=160)
    with console.capture() as capture:
        report.show(found(), judge(found()), {"processor": "any"}, console)
    printed = capture.get().splitlines()
    assert len([line for line in printed if line.startswith(("PASS", "MISS"))]) == 13
    failed = "FAILED  round 1, PgQueuer, drain with a backlog: a worker ended. [killed]"
    assert failed in printed
    assert "processor: any" in printed


def test_the_file_holds_every_round_with_its_weather_and_who_was_absent() -> None:
    kept = json.loads(report.as_json(found(), judge(found()), {"processor": "any"}, QUICK))
    assert [one["who"] for one in kept["rounds"]] == ["Trellis", "PgQueuer", "SAQ"]
    assert kept["rounds"][0]["drain, 1 process"] == [200.0]
    assert kept["absent"] == {"Oban": "needs Python 3.12, and none was found"}
    assert kept["weather"][1]["others"] == 1.5
    assert kept["failures"][0]["why"] == "a worker ended. [killed]"
    assert kept["capped"] == [["SAQ", "drain, 1 process"]]
    assert len(kept["bars"]) == 13


def test_the_chart_shows_everybody_in_every_panel() -> None:
    drawn = ET.fromstring(chart.draw(found()))  # noqa: S314 - our own text
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    for who in SYSTEMS:
        assert words.count(who) == len(chart.PANELS)
    assert words.count("needs Python 3.12, and none was found") == len(chart.PANELS)
