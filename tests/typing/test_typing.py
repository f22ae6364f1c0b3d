"""The types of the public API, through two checkers: a mistake is an error before it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--no-error-summary", "--no-incremental"],
    "basedpyright": [sys.executable, "-m", "basedpyright", "--level", "error"],
}


def errors(checker: str, name: str) -> set[int]:
    """Return the numbers of the lines of a file that the checker complains about."""
    run = subprocess.run(
        [*CHECKERS[checker], f"tests/typing/{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return {int(line) for line in re.findall(rf"{name}:(\d+)(?::\d+)?(?:: | - )error", run.stdout)}


@pytest.mark.parametrize("checker", CHECKERS)
def test_everyday_calls_are_accepted(checker: str) -> None:
    assert errors(checker, "accepted.py") == set()


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_mistake_is_caught_and_nothing_else(checker: str) -> None:
    lines = (ROOT / "tests/typing/rejected.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# E: " in line}
    assert len(marked) == 26
    assert errors(checker, "rejected.py") == marked
