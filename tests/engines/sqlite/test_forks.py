"""A process that forks after connecting: what either side was told is stored."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("fork_driver.py")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def told_by(path: Path, scene: str) -> list[str]:
    """Play a scene; return the jobs that were acknowledged in it."""
    run = subprocess.run(
        [sys.executable, str(DRIVER), str(path), scene],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    told: list[str] = json.loads(run.stdout)
    return told


@pytest.mark.parametrize(
    ("scene", "least"), [("parent_leaves_first", 3), ("amid_writing", 324), ("grandchildren", 5)]
)
def test_what_either_side_of_a_fork_was_told_is_stored(
    tmp_path: Path, scene: str, least: int
) -> None:
    path = tmp_path / "jobs.db"
    told = told_by(path, scene)
    assert len(told) >= least
    with closing(sqlite3.connect(path)) as file:
        stored = [each for (each,) in file.execute("select id from trellis_job")]
    assert sorted(told) == sorted(stored)
