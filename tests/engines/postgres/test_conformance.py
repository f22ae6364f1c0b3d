"""The public conformance suite on real PostgreSQL servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import psycopg
import pytest

from tests.engines.postgres.told_time import *  # noqa: F403 - fixtures are found by name
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine
from trellis.testing.conformance import *  # noqa: F403 - the suite is what is imported

pytestmark = [
    pytest.mark.usefixtures("nothing_prepared_late", "claims_from_the_beginning"),
    pytest.mark.long,
]


@pytest.fixture
async def another(url: str) -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    async with AsyncExitStack() as opened:

        async def open_another() -> Engine:
            engine = PostgresEngine(url)
            await engine.open()
            opened.push_async_callback(engine.close)
            return engine

        yield open_another


@pytest.fixture
def caller(url: str, engine: Engine) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()
