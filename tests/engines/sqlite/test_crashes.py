"""A process killed at any statement, before or after any commit, loses and doubles nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("crash_driver.py")

#: Failpoint, and the least number of places of death the work must have had.
FAILPOINTS = (
    ("sqlite.statement", 100),
    ("sqlite.begun", 15),
    ("sqlite.before-commit", 15),
    ("sqlite.after-commit", 15),
    ("sqlite.migrate", 20),
    ("sqlite.migrate.before-commit", 1),
)


@pytest.mark.long
@pytest.mark.parametrize(("failpoint", "least"), FAILPOINTS)
def test_a_death_at_any_step_loses_nothing_and_doubles_nothing(
    failpoint: str, least: int, tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, str(DRIVER), failpoint, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= least
