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


def errors(checker: str, *names: str) -> dict[str, set[int]]:
    """Return, per file, the numbers of the lines that the checker complains about."""
    run = subprocess.run(
        [*CHECKERS[checker], *(f"tests/typing/{name}" for name in names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    complaint = r"{}:(\d+)(?::\d+)?(?:: | - )error"
    return {name: {*map(int, re.findall(complaint.format(name), run.stdout))} for name in names}


@pytest.mark.parametrize("checker", CHECKERS)
def test_everyday_calls_are_accepted_and_every_mistake_is_caught(checker: str) -> None:
    lines = (ROOT / "tests/typing/rejected.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# E: " in line}
    assert len(marked) == 33
    assert errors(checker, "accepted.py", "rejected.py") == {
        "accepted.py": set(),
        "rejected.py": marked,
    }
