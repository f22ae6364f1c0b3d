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

GIVEN: Final = "TRELLIS_TEST_POSTGRES"  # would replace all versions by one server
LANES: Final = ("test", "test-long")


class Lane(NamedTuple):
    """The tests that a target runs, and how many there are in all."""

    tests: list[str]
    of: int


def arguments(target: str) -> list[str]:
    """Return what the Makefile gives to pytest, without the workers."""
    recipe = re.search(
        rf"^{target}:.*\n\t@\$\(BIN\)/python -m pytest -n 2 (.*) \$\(ARGS\)$",
        (ROOT / "Makefile").read_text(),
        re.MULTILINE,
    )
    assert recipe is not None
    return shlex.split(recipe[1])


@pytest.fixture(scope="module")
def lanes() -> dict[str, Lane]:
    """Collect both lanes, at the same time."""
    runs = {
        target: subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments(target), "--collect-only"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != GIVEN},
            stdout=subprocess.PIPE,
            text=True,
        )
        for target in LANES
    }
    return {target: collected(run.communicate()[0]) for target, run in runs.items()}


def collected(output: str) -> Lane:
    tests = [line for line in output.splitlines() if "::" in line]
    count = re.search(r"^(\d+)/(\d+) tests collected", output, re.MULTILINE)
    assert count is not None, output[-2000:]
    assert len(tests) == int(count[1])
    return Lane(tests, int(count[2]))


@pytest.mark.long
def test_every_test_is_in_exactly_one_lane(lanes: dict[str, Lane]) -> None:
    short, long = (lanes[target] for target in LANES)
    assert short.tests
    assert long.tests
    assert not set(short.tests) & set(long.tests)
    assert len(short.tests) + len(long.tests) == short.of == long.of


@pytest.mark.long
def test_only_the_long_lane_needs_a_second_version_of_postgresql(lanes: dict[str, Lane]) -> None:
    short, long = (lanes[target].tests for target in LANES)
    assert not [test for test in short if re.search(r"\bpg(?!18\b)\d+", test)]
    for version in ("pg16", "pg18"):
        assert any(version in test for test in long + short)
