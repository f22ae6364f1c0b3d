"""An engine whose clock the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from trellis.engines.memory import MemoryEngine
from trellis.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock) -> AsyncIterator[MemoryEngine]:
    engine = MemoryEngine(clock)
    await engine.open()
    yield engine
    await engine.close()
