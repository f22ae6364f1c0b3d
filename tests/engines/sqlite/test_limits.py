"""Limits with two processes that claim from one file at the same time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.limit_races import (
    KEYS,
    LARGEST,
    RATES,
    SCOPE,
    Changes,
    exceeds,
    journals,
    most_at_once,
    prepare,
    work,
)
from trellis.core.limits import Limit, Scope
from trellis.engines.audit import AuditFilter
from trellis.engines.sqlite import SqliteEngine

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


async def a_process(path: Path, *words: str) -> asyncio.subprocess.Process:
    """Start a process that has the file open and works when asked to."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engines.limit_races", f"sqlite:///{path}", *words,
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


async def test_a_rate_that_two_processes_change_under_load_is_not_exceeded(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db")
    await engine.open()
    ids = await prepare(engine, RATES[0], 80)
    children = [await a_process(tmp_path / "jobs.db", "changing") for _ in range(2)]
    answers = await asyncio.gather(*(child.communicate(b"go\n") for child in children))
    assert sum(int(out) for out, _ in answers) == len(ids)
    events = await journals(engine, ids)
    changes = await engine.audit(AuditFilter(action="queue.limit"))
    await engine.close()
    assert len(changes) > len(RATES), "it was raised and lowered more than once"
    assert not exceeds(events, LARGEST)


@pytest.mark.parametrize("scope", [SCOPE, KEYS], ids=["queue", "key"])
async def test_a_rate_that_changes_under_load_is_not_exceeded(tmp_path: Path, scope: Scope) -> None:
    changes = Changes(scope)
    engines = [SqliteEngine(tmp_path / "jobs.db") for _ in range(3)]
    for engine in engines:
        await engine.open()
    ids = await prepare(engines[0], RATES[0], 80, scope)
    done = await asyncio.gather(*(work(engine, 3, changes) for engine in engines))
    events = await journals(engines[0], ids)
    for engine in engines:
        await engine.close()
    assert sum(done) == len(ids)
    assert changes.made > len(RATES), "it was raised and lowered more than once"
    assert not exceeds(events, LARGEST)
