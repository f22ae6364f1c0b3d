"""A SQLite engine on a file of its own, as most of these tests need one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from trellis.engines.sqlite import SqliteEngine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(path)
    await engine.open()
    yield engine
    await engine.close()
