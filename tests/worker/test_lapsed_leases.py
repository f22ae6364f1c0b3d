"""A pause past the lease costs a job that waits for a lock nothing if its lease is renewed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.worker.lapsed import see_lapsed_wait_go_on
from tests.worker.stopped import KINDS, shop


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_whose_lease_lapses_while_it_waits_for_a_lock_goes_on_after_a_renewal(
    tmp_path: Path, kind: str
) -> None:
    database = tmp_path / "jobs.db"
    shop.connection.point_at(f"sqlite:///{database}")

    def lapse() -> None:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("update trellis_session set lease_until = 0")

    journal, got = await see_lapsed_wait_go_on(kind, str(tmp_path / "job"), lapse)
    assert journal == ["created", "started", "completed"]
    assert got is None
