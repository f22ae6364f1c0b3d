"""A pause past the lease costs a job that waits for a lock its attempt, and never the job."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.worker.lapsed import see_lapsed_wait_end
from tests.worker.stopped import KINDS, shop


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_whose_lease_lapses_while_it_waits_for_a_lock_runs_again(
    tmp_path: Path, kind: str
) -> None:
    database = tmp_path / "jobs.db"
    shop.connection.point_at(f"sqlite:///{database}")

    def lapse() -> None:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("update trellis_session set lease_until = 0")

    journal, got = await see_lapsed_wait_end(kind, str(tmp_path / "job"), lapse)
    assert journal == ["created", "started", "retry", "started", "completed"]
    assert got == ["Stopped", False, True]
