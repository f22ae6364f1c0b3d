"""The suite can fail: it catches each deliberate fault of the verbs that PostgreSQL runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import psycopg
import pytest

from tests.conformance.catches import Given, check_mutant, given
from tests.conformance.mutants import OF_POSTGRES, SHARED
from tests.engines.postgres.clock import ServerClock, install_clock
from tests.harness.servers.databases import Databases
from trellis.engines.postgres import PostgresEngine

pytestmark = [
    pytest.mark.usefixtures("claims_from_the_beginning"),
    pytest.mark.long,
    pytest.mark.on_postgres(18),
]


@pytest.fixture
def template(postgres_server: Databases) -> str:
    return postgres_server.template("manual_clock", install_clock)


@pytest.mark.parametrize("mutant", [*SHARED, *OF_POSTGRES])
async def test_the_suite_catches_the_mutant(
    mutant: str, postgres_server: Databases, template: str
) -> None:
    @asynccontextmanager
    async def opening() -> AsyncIterator[Given]:
        url = postgres_server.new_database(template)
        with closing(ServerClock(url)) as clock, psycopg.connect(url) as caller:
            async with given(lambda: PostgresEngine(url), clock, caller) as opened:
                yield opened
        postgres_server.drop(url)

    await check_mutant(mutant, opening)
