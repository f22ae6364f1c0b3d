"""One keeper per test run, whoever of its processes asks first.

Under pytest-xdist the owner is the process that hands out the tests, so that shared servers
outlive the worker that happened to need them first.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tests.harness.servers.kept import KeeperGone, Line, start_keeper


def line_of_run(base: Path) -> Line:
    """Return a line to the run's keeper; `base` is the temporary folder of this pytest process."""
    common = base.parent if in_xdist_worker() else base
    note = common / "postgres-keeper"
    with (common / "postgres-keeper.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return Line(note.read_text())
        except (FileNotFoundError, KeeperGone):
            owner = os.getppid() if in_xdist_worker() else os.getpid()
            note.write_text(start_keeper(owner))
            return Line(note.read_text())


def in_xdist_worker() -> bool:
    """Tell whether this process only runs a part of the tests."""
    return "PYTEST_XDIST_WORKER" in os.environ
