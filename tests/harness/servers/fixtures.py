"""What a conftest imports: databases on the run's shared servers, and servers to break.

Import all of `__all__`: pytest finds fixtures and the hook by name. Tests run on PostgreSQL 18, and
with `make test-long` on 16; a test or a module that needs only one is marked
`pytest.mark.on_postgres(18)`. With TRELLIS_TEST_POSTGRES they run once, on that server. Tests that
stop or kill a server ask for `own_postgres`, and are then skipped. With
TRELLIS_TEST_POSTGRES_PROGRAMS they run once, on servers of that version.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.servers.databases import Databases
from tests.harness.servers.installation import GIVEN as PROGRAMS
from tests.harness.servers.installation import major_version
from tests.harness.servers.kept import Line
from tests.harness.servers.pooler import Pooler
from tests.harness.servers.postgres import Server, shared
from tests.harness.servers.proxy import Proxy
from tests.harness.servers.run import in_xdist_worker, line_of_run

__all__ = [
    "own_postgres",
    "own_server",
    "postgres_pooler",
    "postgres_proxy",
    "postgres_run",
    "postgres_server",
    "postgres_url",
    "pytest_generate_tests",
]

VERSIONS: Final = (16, 18)
#: The version of `make test`; tests on another are long.
OFTEN: Final = 18
_lines: Final[list[Line]] = []
GIVEN: Final = os.environ.get("TRELLIS_TEST_POSTGRES")
_BY_VERSION: Final = ("own_server", "postgres_server")  # in the same order in every process
_NO_CRASHES: Final = (
    "TRELLIS_TEST_POSTGRES names a server, and this test would stop or kill it:"
    " it runs on servers of our own only"
)
_NO_POOLER: Final = "the pooler can log in to servers of our own only"
_NO_SERVERS: Final = (
    "servers of our own need Linux; name one that runs in TRELLIS_TEST_POSTGRES to test on it"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs a server on each version that is wanted."""
    marker = metafunc.definition.get_closest_marker("on_postgres")
    versions = VERSIONS if marker is None else marker.args
    if PROGRAMS is None:
        wanted = [
            pytest.param(version, marks=() if version == OFTEN else pytest.mark.long)
            for version in versions
        ]
    else:
        wanted = [pytest.param(major_version(Path(PROGRAMS)))]
    for fixture in (name for name in _BY_VERSION if name in metafunc.fixturenames):
        metafunc.parametrize(
            fixture,
            wanted if GIVEN is None else ["given"],
            indirect=True,
            ids=(lambda version: f"pg{version}") if GIVEN is None else None,
            scope="session" if fixture == "postgres_server" else "module",
        )


@pytest.fixture(scope="session")
def postgres_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """The line to the keeper of this test run."""
    if sys.platform != "linux":
        pytest.skip(_NO_SERVERS)
    line = line_of_run(tmp_path_factory.getbasetemp())
    _lines.append(line)  # each folder that imports this has a fixture, and a line, of its own
    yield line
    _lines.remove(line)
    if in_xdist_worker() or _lines:
        line.close()  # others may still need the servers: they end with the run
    else:
        line.end_keeper()


@pytest.fixture(scope="session")
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


@pytest.fixture
def postgres_proxy(postgres_url: str) -> Iterator[Proxy]:
    """A fault proxy before the test's database."""
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def postgres_pooler(postgres_url: str) -> Iterator[Pooler]:
    """A transaction pooler with two connections to the test's database."""
    if GIVEN is not None:
        pytest.skip(_NO_POOLER)
    with Pooler(postgres_url) as pooler:
        yield pooler


@pytest.fixture(scope="module")
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
