"""A store whose time a test tells, and its HTTP API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.server.profiles.steps import Store
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.server import create_app
from trellis.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the engine."""
    return ManualClock()


@pytest.fixture
async def engine(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    """An engine on a file."""
    engine = SqliteEngine(tmp_path / "jobs.db", clock=clock)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def another(
    tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    """Opens a further engine on the same store, as a further server has it."""
    async with AsyncExitStack() as opened:

        async def open_another() -> Engine:
            engine = SqliteEngine(tmp_path / "jobs.db", clock=clock)
            await engine.open()
            opened.push_async_callback(engine.close)
            return engine

        yield open_another


@pytest.fixture
async def store(engine: Engine, clock: ManualClock) -> AsyncIterator[Store]:
    """The engine behind its HTTP API."""
    app = create_app(engine=engine)
    async with app.router.lifespan_context(app):
        yield Store(app, engine, clock)
