"""What a conftest imports: databases on the run's shared servers, and servers to break.

    from tests.servers.fixtures import own_postgres, postgres_run, postgres_server, postgres_url

Tests run on PostgreSQL 16 and 18; a module that wants fewer says `pytestmark = on_postgres(18)`.
With TRELLIS_TEST_POSTGRES they run on that server instead, once. Tests that stop or kill a server
ask for `own_postgres` (`on_postgres(18, of="own_server")`) and are then skipped.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.servers.databases import Databases
from tests.servers.kept import Line
from tests.servers.postgres import Server, shared
from tests.servers.run import in_xdist_worker, line_of_run

VERSIONS: Final = (16, 18)
GIVEN: Final = os.environ.get("TRELLIS_TEST_POSTGRES")
_NO_CRASHES: Final = (
    "TRELLIS_TEST_POSTGRES names a server, and this test would stop or kill it:"
    " it runs on servers of our own only"
)
_NO_SERVERS: Final = (
    "servers of our own need Linux; name one that runs in TRELLIS_TEST_POSTGRES to test on it"
)


def on_postgres(*versions: int, of: str = "postgres_server") -> pytest.MarkDecorator:
    """Choose the versions a test or a module runs on."""
    return pytest.mark.parametrize(of, _choices(versions), indirect=True, ids=_identify)


def _choices(versions: tuple[int, ...]) -> tuple[int, ...]:
    return versions if GIVEN is None else versions[:1]


def _identify(version: int) -> str:
    return f"pg{version}" if GIVEN is None else "given"


@pytest.fixture(scope="session")
def postgres_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """The line to the keeper of this test run."""
    if sys.platform != "linux":
        pytest.skip(_NO_SERVERS)
    line = line_of_run(tmp_path_factory.getbasetemp())
    yield line
    if in_xdist_worker():
        line.close()  # others may still need the servers: they end with the run
    else:
        line.end_keeper()


@pytest.fixture(scope="session", params=_choices(VERSIONS), ids=_identify)
def postgres_server(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """A server shared by the whole run: make databases on it, never stop it."""
    if GIVEN is not None:
        server = Databases(GIVEN, prefix=f"trellis_test_{secrets.token_hex(4)}")
        yield server
        server.close_all()
        return
    line: Line = request.getfixturevalue("postgres_run")
    server = shared(line, request.param)
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: Databases) -> Iterator[str]:
    """A fresh empty database."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="module", params=_choices(VERSIONS), ids=_identify)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A durable server for the tests of one module, in whatever state the last one left it."""
    if GIVEN is not None:
        pytest.skip(_NO_CRASHES)
    line: Line = request.getfixturevalue("postgres_run")
    server = Server(line, request.param, durable=True, tcp=True)
    yield server
    server.end()


@pytest.fixture
def own_postgres(own_server: Server) -> Server:
    """A running durable server that a test may stop, kill and start again."""
    own_server.start()
    return own_server
