"""Random lives of each engine, compared step by step with the memory engine."""

from __future__ import annotations

import importlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.lives import budget
from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.clock import ManualClock
from trellis.testing.model import THOROUGH, EngineModel
from trellis.testing.model.machine import ROLLS

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


def _drawn() -> list[list[int]]:
    """Return what Hypothesis draws for a model, the same ones every time."""
    found: list[list[int]] = []

    @settings(THOROUGH, max_examples=200)
    @given(st.lists(ROLLS, min_size=1, max_size=3))
    def draw(rolls: list[int]) -> None:
        found.append(rolls)

    draw()
    return found


def test_a_life_does_not_depend_on_the_modules_that_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _drawn()
    numbers = ", ".join(map(str, range(1_000_000, 1_000_050)))
    (tmp_path / "with_numbers.py").write_text(f"NUMBERS = [{numbers}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("with_numbers")
    assert _drawn() == before


def test_all_steps_are_drawn_alike() -> None:
    rolls = [roll for life in _drawn() for roll in life]
    assert 0.4 < sum(roll < 2**23 for roll in rolls) / len(rolls) < 0.6


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = budget(25)
TestSqliteModel = SqliteModel.TestCase
# A history compares schedules, limits, contracts and more after every step: a quarter of them fits.
TestSqliteModel.settings = budget(THOROUGH.max_examples // 4)
# Thousands of steps, and a failing life takes minutes to shorten.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
