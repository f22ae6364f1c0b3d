"""The guide to FastAPI, followed to the letter: its program and its tests, on PostgreSQL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.engines.postgres.steps import fresh
from tests.harness import ROOT
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from tests.testing.test_plugin import run_pytest

GUIDE = (ROOT / "docs" / "guides" / "fastapi.md").read_text()
AGAINST_A_WORKER = """
import jobs
from test_web import client


async def test_a_worker_bills_what_the_commit_has_stored(client):
    answer = (await client.post("/orders/pears")).json()
    async with jobs.app.worker():
        shown = await client.get(f"/bills/{answer['job']}")
    assert shown.json() == {"bill": f"bill of order {answer['order']}"}
"""


@pytest.mark.on_postgres(18)
def test_the_program_and_the_tests_of_the_guide_run(
    postgres_server: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == GUIDE.count("```python") == 3
    for name, text in [*blocks, ("test_worker.py", AGAINST_A_WORKER)]:
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("DATABASE_URL", fresh(postgres_server))
    ran = run_pytest(tmp_path, "-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto")
    assert (ran.returncode, "5 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr
