"""Limits with two processes that claim from one file at the same time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.limit_races import exceeds, journals, most_at_once, prepare
from trellis.core.limits import Limit
from trellis.engines.sqlite import SqliteEngine

ROOT = Path(__file__).parents[3]


async def a_process(path: Path) -> asyncio.subprocess.Process:
    """Start a process that has the file open and works when asked to."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engines.limit_races", f"sqlite:///{path}",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert child.stdout is not None
    assert await child.stdout.readline() == b"open\n"
    return child


@pytest.mark.parametrize("limit", [Limit(active=2), Limit(rate="40/1s", burst=5)], ids=str)
async def test_two_processes_never_exceed_a_limit(tmp_path: Path, limit: Limit) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db")
    await engine.open()
    ids = await prepare(engine, limit, 40)
    children = [await a_process(tmp_path / "jobs.db") for _ in range(2)]
    answers = await asyncio.gather(*(child.communicate(b"go\n") for child in children))
    assert sum(int(out) for out, _ in answers) == len(ids)
    events = await journals(engine, ids)
    await engine.close()
    if limit.active is not None:
        assert most_at_once(events) <= limit.active
    if limit.bucket is not None:
        assert not exceeds(events, limit.bucket)
