"""What SQL users read in a SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from trellis import ActiveJob, Retry, Service


async def test_the_view_of_items_shows_those_of_the_latest_attempt(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    async with Service("shop", f"sqlite:///{file}") as shop:

        @shop.job(retry=Retry.fixed(0, attempts=2))
        async def publish(job: ActiveJob[int]) -> None:
            job.phase("editions")
            job.items.complete("one")
            job.items.fail("two", f"boom {job.attempt}")
            if job.attempt == 1:
                raise ValueError("again")

        async with shop.worker():
            ref = await publish.create(1)
            await ref.wait("30s")
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute(
            "select id, phase, item, status, detail, claim from trellis_job_items"
        ).fetchall()
    assert rows == [
        (ref.id, "editions", "one", "completed", None, 2),
        (ref.id, "editions", "two", "failed", "boom 2", 2),
    ]
