"""The programs of the guide to retention run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness import ROOT
from tests.testing.test_plugin import run_pytest

GUIDE = (ROOT / "docs" / "guides" / "retention.md").read_text()
KEEP = """
from trellis import Service


class Store:
    rows = []

    async def put(self, rows):
        self.rows += rows


app, store = Service("keep"), Store()


@app.job
def work(number: int) -> int:
    return number
"""
TESTS = """
import asyncio
import json
from pathlib import Path

import keep
import shop
import shop_of_keep
from trellis.insight.archived import archived_jobs


async def jobs_of(app, job):
    async with app, app.worker():
        ref = await job.create(7)
        await ref.wait("10s")
        engine = await app.connection.engine()
        return await archived_jobs(engine, (await engine.load([ref.id])).records, secrets=False)


def test_jobs_are_archived(monkeypatch, tmp_path):
    monkeypatch.setenv("TRELLIS_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    archiver = shop.bill.job_type.extensions.archiver
    archiver.function(asyncio.run(jobs_of(shop.app, shop.bill)))
    (file,) = Path("archive").iterdir()
    assert json.loads(file.read_text())["job"]["result"] == "bill of order 7"
    asyncio.run(keep.keep(asyncio.run(jobs_of(shop_of_keep.app, shop_of_keep.work))))
    assert [row[1:] for row in shop_of_keep.store.rows] == [("completed", 7)]
"""


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL)
    assert [name for name, _ in blocks] == ["shop.py", "keep.py"]
    for name, text in [*blocks, ("shop_of_keep.py", KEEP), ("test_shop.py", TESTS)]:
        (tmp_path / name).write_text(text)
    ran = run_pytest(tmp_path)
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr
