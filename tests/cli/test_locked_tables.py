"""Commands on PostgreSQL while somebody has locked a table: they end soon and name who did it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.cli.conftest import Run
from tests.engines.postgres.steps import fresh, with_options
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name

pytestmark = pytest.mark.on_postgres(18)
SOON = "600ms"
COMMANDS = (
    ("doctor", "--quick"),
    ("jobs", "list"),
    ("jobs", "count"),
    ("jobs", "top", "--once"),
    ("jobs", "why", "01M0000000000000000000000"),
    ("enqueue", "shop/greet", '"ada"'),
    ("queues",),
    ("workers",),
)


@pytest.fixture(scope="module")
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="module")
def holder(url: str) -> Iterator[int]:
    """Hold the queue; yield the server process that does."""
    with psycopg.connect(url, application_name="the report") as connection:
        connection.execute("lock table trellis.queue, trellis.session in access exclusive mode")
        yield connection.info.backend_pid
        connection.rollback()


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_names_who_has_locked_the_tables(
    command: Run, url: str, holder: int, arguments: tuple[str, ...]
) -> None:
    ran = command(*arguments, "--url", with_options(url, statement_timeout=SOON))
    assert (ran.code, ran.out) == (5, "")
    assert f"The lock is held by process {holder} (the report, " in ran.err
    assert f"select pg_terminate_backend({holder})" in ran.err
    assert "Nothing of this call was stored." in ran.err


def test_a_command_does_not_need_options_to_name_who(command: Run, url: str, holder: int) -> None:
    ran = command("jobs", "list", "--url", url)
    assert ran.code == 5
    assert f"process {holder} " in ran.err
