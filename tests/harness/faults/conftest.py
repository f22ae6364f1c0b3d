"""A server to crash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.postgres.steps import migrate
from tests.harness.faults.stores.postgres import SETTINGS, PostgresStore, make_store
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from tests.harness.servers.fixtures import GIVEN
from tests.harness.servers.kept import Line
from tests.harness.servers.postgres import Server


@pytest.fixture
def crashing(postgres_run: Line) -> Iterator[PostgresStore]:
    """A database on a durable server of its own, which a campaign may kill."""
    if GIVEN is not None:
        pytest.skip("TRELLIS_TEST_POSTGRES names a server, and a campaign would kill it")
    server = Server(postgres_run, 18, durable=True, settings=SETTINGS)
    yield make_store(server, migrate)
    server.end()
