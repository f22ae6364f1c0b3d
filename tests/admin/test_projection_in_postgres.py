"""The tests of the projection and of `Jobs.*` once more, in PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.admin.conftest import Read
from tests.admin.test_foreign_messages import *  # noqa: F403 - the tests are what is imported
from tests.admin.test_jobs_rpc import *  # noqa: F403
from tests.admin.test_projected_flow import *  # noqa: F403
from tests.admin.test_projection_views import *  # noqa: F403
from tests.admin.test_projector import *  # noqa: F403
from tests.engines.postgres.clock import ServerClock, install_clock
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from trellis.core.durations import to_instant
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine

pytestmark = [pytest.mark.on_postgres(18), pytest.mark.long]


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    """A database with our tables and a clock that a test sets."""
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
async def tables(url: str) -> AsyncIterator[Engine]:
    engine: Engine = PostgresEngine(url)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def read(url: str) -> Read:
    """Reads a view; times are of the type of the database there."""

    def read(view: str) -> list[dict[str, Any]]:
        with psycopg.connect(url, row_factory=dict_row) as connection:
            rows = connection.execute(f"select * from trellis.{view}").fetchall()  # noqa: S608
        return [
            {name: to_instant(value) if isinstance(value, datetime) else value
             for name, value in row.items()}
            for row in rows
        ]  # fmt: skip

    return read
