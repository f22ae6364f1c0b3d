"""The guide to workflows: its programs run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness import ROOT
from tests.testing.test_plugin import run_pytest

GUIDE = (ROOT / "docs" / "guides" / "workflows.md").read_text()
TESTS = """
import pytest
import agents, flows, prices, shop
from trellis import JobCancelled, State
from trellis.testing import sandbox


async def test_a_diamond():
    with sandbox() as box:
        sent = await shop.ship(shop.Order(7))
        await box.run_all()
        assert await sent.wait() == "sent 7"


async def test_a_failure():
    with sandbox() as box:
        sent = await shop.ship(shop.Order(-7))
        await box.run_all(raise_errors=False)
        with pytest.raises(JobCancelled):
            await sent.wait()


async def test_a_chain():
    with sandbox() as box:
        chain = await prices.price("pears")
        await box.run_all()
        assert await chain.wait() == "6.00 EUR"


async def test_fan_out_and_fan_in(tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    async with agents.app, agents.app.worker():
        last = await (await agents.plan.create("bees")).wait("30s")
        text = await agents.synthesize.ref(last).wait("30s")
    assert text == "notes on bees A; notes on bees B; notes on bees C"


async def test_a_graph_by_name():
    with sandbox() as box:
        refs = await flows.ship(shop.Order(7))
        await box.run_all()
        assert (await refs["send"].status()).state is State.COMPLETED
"""


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == GUIDE.count("```python") == 4
    for name, text in [*blocks, ("test_programs.py", TESTS)]:
        (tmp_path / name).write_text(text)
    ran = run_pytest(tmp_path, "-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto")
    assert (ran.returncode, "5 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr
