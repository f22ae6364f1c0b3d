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


def lanes() -> list[Lane]:
    """Collect both lanes, at the same time."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments(target), "--collect-only"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith(GIVEN)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for target in LANES
    ]
    return [collected(run.communicate()[0]) for run in runs]


def collected(output: str) -> Lane:
    tests = [line for line in output.splitlines() if "::" in line]
    count = re.search(r"^(\d+)/(\d+) tests collected", output, re.MULTILINE)
    assert count is not None, output[-2000:]
    assert len(tests) == int(count[1])
    return Lane(tests, int(count[2]))


@pytest.mark.long
def test_every_test_is_in_one_lane_and_postgresql_16_in_the_long_one() -> None:
    short, long = lanes()
    assert short.tests
    assert not set(short.tests) & set(long.tests)
    assert len(short.tests) + len(long.tests) == short.of == long.of
    assert not [test for test in short.tests if re.search(r"\bpg(?!18\b)\d", test)]
    assert any("pg18" in test for test in short.tests)
    assert any("pg16" in test for test in long.tests)
