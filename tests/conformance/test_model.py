"""Random lives of each engine, compared step by step with the memory engine."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.harness.lives import budget
from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.clock import ManualClock
from trellis.testing.model import THOROUGH, EngineModel

#: Memory behind a path: the model asks whether the answers are right, not whether a disk is fast.
_FAST: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made inside


class MemoryModel(EngineModel):
    """The memory engine against itself: what the model itself must survive."""

    async def open_engine(self, clock: ManualClock) -> Engine:
        engine = MemoryEngine(clock=clock)
        await engine.open()
        return engine


class SqliteModel(EngineModel):
    """The SQLite engine against the memory engine."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory(dir=_FAST if _FAST.is_dir() else None)

    async def open_engine(self, clock: ManualClock) -> Engine:
        engine = SqliteEngine(str(Path(self._folder.name) / "jobs.db"), clock=clock)
        await engine.open()
        return engine

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._folder.cleanup()


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = budget(25)
TestSqliteModel = SqliteModel.TestCase
# A history compares schedules, limits, contracts and more after every step: a quarter of them fits.
TestSqliteModel.settings = budget(THOROUGH.max_examples // 4)
# Thousands of steps, and a failing life takes minutes to shorten.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
