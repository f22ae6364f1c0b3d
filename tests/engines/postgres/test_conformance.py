"""The public conformance suite on real PostgreSQL servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import psycopg
import pytest

from tests.engines.postgres.clock import ServerClock, install_clock
from tests.harness.servers.databases import Databases
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine
from trellis.testing.conformance import *  # noqa: F403 - the suite is what is imported

pytestmark = pytest.mark.usefixtures("nothing_prepared_late")


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    """A database with our tables, whose time a test tells."""
    template = postgres_server.template("manual_clock", install_clock)
    url = postgres_server.new_database(template)
    yield url
    postgres_server.drop(url)


@pytest.fixture
def clock(url: str) -> Iterator[ServerClock]:
    clock = ServerClock(url)
    yield clock
    clock.close()


@pytest.fixture
async def engine(url: str, clock: ServerClock) -> AsyncIterator[Engine]:
    engine = PostgresEngine(url)
    await engine.open()
    yield engine
    await engine.close()


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
