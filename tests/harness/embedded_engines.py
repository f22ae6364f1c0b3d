"""Fixtures: the engines that a process has inside, each with a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.clock import ManualClock

__all__ = ["clock", "engine"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Engine]:
    engine: Engine
    if request.param == "memory":
        engine = MemoryEngine(clock)
    else:
        engine = SqliteEngine(tmp_path / "jobs.db", clock=clock)
    await engine.open()
    yield engine
    await engine.close()
