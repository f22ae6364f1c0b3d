"""The same tests of workers that only speak HTTP, on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from tests.engines.postgres.told_time import *  # noqa: F403 - fixtures are found by name
from tests.server.profiles.test_http_workers import *  # noqa: F403 - the tests themselves
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine

pytestmark = [pytest.mark.long, pytest.mark.on_postgres(18)]


@pytest.fixture
async def another(url: str) -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    """Opens a further engine on the same store, as a further server has it."""
    async with AsyncExitStack() as opened:

        async def open_another() -> Engine:
            engine = PostgresEngine(url)
            await engine.open()
            opened.push_async_callback(engine.close)
            return engine

        yield open_another
