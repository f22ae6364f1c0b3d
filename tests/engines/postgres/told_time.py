"""Fixtures: an engine on a database whose time a test tells."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.engines.postgres.clock import ServerClock, install_clock
from tests.harness.servers.databases import Databases
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine

__all__ = ["clock", "engine", "url"]


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
