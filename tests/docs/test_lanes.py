"""`make test` and `make test-long` together run every test, and none of them twice."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import Final, NamedTuple

import pytest

from tests.harness import ROOT

GIVEN: Final = "TRELLIS_TEST_POSTGRES"  # variables that would replace all versions by one server
LANES: Final = ("test", "test-long")
REPORT: Final = "tests.docs.lane_report"


def arguments(target: str) -> list[str]:
    """Return what the Makefile gives to pytest, without the workers."""
    recipe = re.search(
        rf"^{target}:.*\n\t@\$\(BIN\)/python -m pytest -n 3 (.*) \$\(ARGS\)$",
        (ROOT / "Makefile").read_text(),
        re.MULTILINE,
    )
    assert recipe is not None
    return shlex.split(recipe[1])


class Marked(NamedTuple):
    """All tests, by whether they have the mark of the long lane."""

    short: list[str]
    long: list[str]


def collected() -> Marked:
    """Collect all tests once; `tests/docs/lane_report.py` prints which of them are long."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-qq", "--collect-only", "-p", REPORT, "tests"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(GIVEN)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = [line.split("\t") for line in run.stdout.splitlines() if "\t" in line]
    assert found, run.stdout[-2000:]
    return Marked(*([test for lane, test in found if lane == each] for each in ("short", "long")))


def test_the_lanes_differ_in_nothing_but_the_mark() -> None:
    chosen = {lane: arguments(lane) for lane in LANES}
    marks = {lane: words.pop(words.index("-m") + 1) for lane, words in chosen.items()}
    assert marks == {"test": "not long", "test-long": "long"}
    assert {words[-1] for words in chosen.values()} == {"tests"}
    assert not {"-k", "--deselect", "--ignore"} & {word for lane in LANES for word in chosen[lane]}


@pytest.mark.long
def test_postgresql_16_is_in_the_long_lane() -> None:
    short, long = collected()
    assert not [test for test in short if re.search(r"\bpg(?!18\b)\d", test)]
    assert any("pg18" in test for test in short)
    assert any("pg16" in test for test in long)
