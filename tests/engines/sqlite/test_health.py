"""What a SQLite engine reports about its log."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from trellis.engines.sqlite import SqliteEngine
from trellis.engines.sqlite.connection import LOG_LIMIT
from trellis.testing.builders import a_job

_READ = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("begin")
file.execute("select count(*) from trellis_job").fetchone()
print("reads", flush=True)
sys.stdin.read()
"""
_LARGE = '"' + "x" * 100_000 + '"'

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks")


@asynccontextmanager
async def long_reader(path: Path) -> AsyncIterator[int]:
    """Run a program that keeps a read transaction open; yield its process id."""
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _READ, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    assert await reader.stdout.readline() == b"reads\n"
    try:
        yield reader.pid
    finally:
        reader.stdin.close()
        await reader.wait()


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


async def fill(engine: SqliteEngine, megabytes: int) -> None:
    for _ in range(megabytes):
        await engine.create([a_job(payload=_LARGE) for _ in range(10)])


async def test_a_log_that_a_reader_keeps_is_reported_with_the_reader(
    engine: SqliteEngine, path: Path
) -> None:
    async with long_reader(path) as pid:
        await fill(engine, 6)
        health = await engine.health()
    (warning,) = [each for each in health.warnings if "-wal has grown" in each]
    assert f"process {pid} ({sys.executable} -c" in warning
    assert "End that transaction or that program" in warning
    assert health.facts["wal_bytes"] > health.facts["size_bytes"]


async def test_a_log_of_usual_length_is_not_reported(engine: SqliteEngine) -> None:
    await fill(engine, 6)
    assert not any("-wal" in each for each in (await engine.health()).warnings)


async def test_a_long_log_shrinks_after_the_reader_has_ended(
    engine: SqliteEngine, path: Path
) -> None:
    async with long_reader(path):
        await fill(engine, LOG_LIMIT // 1_000_000 + 10)
        assert log_size(path) > LOG_LIMIT
    other = SqliteEngine(path)
    await other.open()
    await engine.close()  # moves the log into the file, which the other one still has open
    assert log_size(path) > LOG_LIMIT
    await fill(other, 1)
    assert log_size(path) <= LOG_LIMIT
    await other.close()
