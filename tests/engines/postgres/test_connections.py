"""How many connections a worker has, whatever it does at the same time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.engines.postgres.steps import PATIENCE, fresh
from tests.harness.servers.databases import Databases
from trellis import Service

pytestmark = pytest.mark.on_postgres(16, 18)

AT_ONCE = 40
_APP = """
import asyncio
import os
import psycopg
from trellis import ActiveJob, Service

app = Service("shop")
everybody = asyncio.Barrier(40)
COUNT = \"\"\"select count(*) from pg_stat_activity
    where datname = current_database() and application_name = 'trellis'\"\"\"

def count():
    with psycopg.connect(os.environ["TRELLIS_URL"]) as connection:
        return connection.execute(COUNT).fetchone()[0]

@app.job
async def meet(job: ActiveJob[int]) -> int:
    job.log.info("here")
    job.progress(1, 2)
    async with job.lock(f"place {job.payload}"):
        await everybody.wait()
        return await asyncio.to_thread(count)
"""
_RESULTS = "select result::int from trellis.outcome where state = 'completed'"


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def _create(url: str) -> None:
    shop = Service("shop", url)
    async with shop:
        await shop.declare("meet", payload=int, result=int).create_many(range(AT_ONCE))


async def _results(url: str) -> list[int]:
    async with asyncio.timeout(PATIENCE):
        while True:
            with psycopg.connect(url) as connection:
                found = [row[0] for row in connection.execute(_RESULTS).fetchall()]
            if len(found) == AT_ONCE:
                return found
            await asyncio.sleep(0.1)


@contextmanager
def _working(url: str, folder: Path) -> Iterator[None]:
    """Have a real worker with room for all."""
    (folder / "jobs.py").write_text(_APP)
    command = [
        sys.executable, "-m", "trellis", "worker", "jobs:app", "--concurrency", str(AT_ONCE),
    ]  # fmt: skip
    environment = {**os.environ, "TRELLIS_URL": url}
    worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(PATIENCE)


async def test_a_worker_has_at_most_three_connections_however_many_jobs_it_runs(
    url: str, tmp_path: Path
) -> None:
    await _create(url)
    with _working(url, tmp_path):
        assert max(await _results(url)) <= 3
