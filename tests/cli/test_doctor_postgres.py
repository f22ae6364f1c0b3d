"""`trellis doctor` on real servers: each problem is named, with what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from tests.cli.conftest import Run
from tests.engines.postgres.steps import fresh, with_options
from tests.engines.postgres.test_sql import BLOCKS
from tests.harness.age.filling import add_dead
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from tests.harness.servers.fixtures import GIVEN
from tests.harness.servers.kept import Line
from tests.harness.servers.pooler import Pooler
from tests.harness.servers.postgres import Server
from trellis.engines.postgres import schema
from trellis.engines.postgres.health import Probe, findings
from trellis.engines.postgres.statements import migrations
from trellis.engines.postgres.url import read_address

pytestmark = pytest.mark.on_postgres(18)

#: A server that is set up badly.
_BAD = {
    "autovacuum": "off",
    "fsync": "off",
    "max_connections": "25",
    "max_prepared_transactions": "2",
    "max_wal_senders": "2",
    "synchronous_commit": "off",
    "wal_level": "replica",
}
#: More transactions than the age of a snapshot that causes no warning.
_MANY = """
    do $$ begin for n in 1..50001 loop perform pg_current_xact_id(); commit; end loop; end $$
"""
#: The row of a healthy server.
_WELL: dict[str, Any] = {
    "version": "18.4", "version_number": 180_004, "is_standby": False, "fsync": "on",
    "full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on", "track_counts": "on",
    "connections": 1, "max_connections": 97, "dead_queue_rows": 0, "live_queue_rows": 0,
    "last_autovacuum": None,
}  # fmt: skip


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="module")
def bad(request: pytest.FixtureRequest) -> Iterator[str]:
    if GIVEN is not None:
        pytest.skip("a server that is set up badly must be one of our own")
    postgres_run: Line = request.getfixturevalue("postgres_run")
    server = Server(postgres_run, 18, settings=_BAD)
    yield fresh(server)
    server.end()


def warnings(command: Run, url: str) -> str:
    """Return what doctor warns of, one line each."""
    ran = command("doctor", "--quick", "--url", url)
    assert (ran.code, ran.err) == (0, "")
    lines = [line for line in ran.out.splitlines() if line.startswith("Warning     ")]
    return "\n".join(line.removeprefix("Warning     ") for line in lines)


# -- the server ------------------------------------------------------------------------------------


def test_settings_that_endanger_the_database_are_named(command: Run, bad: str) -> None:
    text = warnings(command, bad)
    assert "fsync or full_page_writes is off" in text
    assert "synchronous_commit is off" in text
    assert "autovacuum does not run" in text
    assert "connections are in use" not in text


def test_a_server_almost_without_free_connections_is_named(command: Run, bad: str) -> None:
    with ExitStack() as stack:
        for _ in range(17):
            stack.enter_context(closing(psycopg.connect(bad)))
        text = warnings(command, bad)
    assert "of 22 connections are in use: a worker needs up to 3" in text


def test_transactions_that_hold_the_horizon_are_named_with_the_way_to_end_them(
    command: Run, bad: str
) -> None:
    with (
        psycopg.connect(bad, application_name="the report") as holder,
        psycopg.connect(bad, autocommit=True) as sql,
    ):
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select from trellis.meta")
        pid = holder.info.backend_pid
        prepare(bad)
        sql.execute("select pg_create_physical_replication_slot('standby', true)")
        sql.execute(_MANY)
        with psycopg.connect(bad, autocommit=True) as briefly:  # its end reports the dead rows
            add_dead(briefly, 50_001)
        text = warnings(command, bad)
        (found, *_) = sql.execute(BLOCKS["horizon"]).fetchall()
        sql.execute("rollback prepared 'the order'")
        sql.execute("select pg_drop_replication_slot('standby')")
    assert found[:3] == (pid, "the report", "idle in transaction")
    assert f"Process {pid} (the report, idle in transaction, user postgres) holds an old" in text
    assert f"select pg_terminate_backend({pid})" in text
    assert "The prepared transaction 'the order' (user postgres) is open for" in text
    assert "ROLLBACK PREPARED 'the order'" in text
    assert "The replication slot standby is not in use, and the server keeps" in text
    assert "trellis.queue has 50,001 dead rows beside 0 live ones; autovacuum has never run" in text
    assert "VACUUM trellis.queue" in text


def prepare(url: str) -> None:
    """Leave a prepared transaction behind."""
    with psycopg.connect(url, autocommit=True) as sql:
        sql.execute("begin")
        sql.execute("insert into trellis.meta values ('order', '1')")
        sql.execute("prepare transaction 'the order'")


def test_an_old_server_and_a_standby_are_named() -> None:
    row = {**_WELL, "version": "13.9", "version_number": 130_009, "is_standby": True}
    text = list(findings(row, read_address("postgresql:///jobs"), Probe(is_notified=True), (), ()))
    assert [each[:30] for each in text] == [
        "PostgreSQL 13.9 is older than ",
        "This server is a standby: noth",
    ]


def test_a_healthy_server_causes_no_warning(command: Run, url: str) -> None:
    text = warnings(command, url).splitlines()
    # The servers of tests do without that safety.
    assert [each for each in text if not each.startswith("fsync or full_page_writes")] == []
    facts = json.loads(command("doctor", "--json", "--url", url).out)["facts"]
    assert (facts["wake_up"], facts["pooler"], facts["autovacuum"]) == ("listen", "none", "on")


# -- the connection --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("pooler=session", "A transaction pooler is in front of"),
        ("pooler=transaction", "Behind a transaction pooler, workers cannot be woken"),
    ],
)
def test_a_pooler_that_the_url_does_not_name_is_found(
    command: Run, url: str, options: str, expected: str
) -> None:
    with Pooler(url) as pooler:
        ran = command("doctor", "--quick", "--url", f"{pooler.url}&{options}")
    assert expected in f"{ran.out}{ran.err}"


def test_a_pooler_that_refuses_our_settings_is_named(command: Run, url: str) -> None:
    with Pooler(url) as pooler:
        ran = command("doctor", "--url", pooler.url)
    assert ran.code == 2
    assert "A pooler is in front of" in ran.err
    assert "Add pooler=transaction to the URL" in ran.err


def test_a_pooler_that_the_url_names_causes_no_warning(command: Run, url: str) -> None:
    with Pooler(url) as pooler:
        poll = with_options(pooler.url, pooler="transaction", wake="poll")
        past = with_options(pooler.url, pooler="transaction", listen=quote(url, safe=""))
        for each in (poll, past):
            assert "pooler" not in warnings(command, each)


def test_a_listener_on_another_database_receives_nothing(
    command: Run, url: str, postgres_url: str
) -> None:
    with Pooler(url) as pooler:
        past = with_options(pooler.url, pooler="transaction", listen=quote(postgres_url, safe=""))
        assert "do not arrive at its listen=...: workers poll instead" in warnings(command, past)


def test_a_pooler_that_is_named_but_missing_is_reported(command: Run, url: str) -> None:
    text = warnings(command, with_options(url, pooler="transaction"))
    assert "The URL has pooler=transaction, but leads directly to the server" in text
    assert "workers cannot be woken" not in text


def test_settings_that_do_not_arrive_are_named() -> None:
    tried = Probe(astray={"enable_seqscan": "on"}, is_notified=True)
    text = list(findings(_WELL, read_address("postgresql:///jobs"), tried, (), ()))
    assert "enable_seqscan is on instead of off" in text[0]


# -- the schema ------------------------------------------------------------------------------------


def test_tables_of_another_version_are_reported_with_the_command_to_run(
    command: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations("trellis")
    monkeypatch.setattr(schema, "migrations", lambda _: (*known, (known[-1][0] + 1, "select 1;")))
    older = command("doctor", "--url", url)
    with psycopg.connect(url, autocommit=True) as sql:
        sql.execute("update trellis.meta set value = '999' where name = 'schema'")
        newer = command("doctor", "--url", url)
    assert (older.code, newer.code) == (5, 5)
    assert f"has tables of version {known[-1][0]}," in older.err
    assert "Run: trellis migrate --url" in older.err
    assert "has schema version 999; this Trellis knows versions up to" in newer.err
    assert "Upgrade trellis-jobs" in newer.err


@pytest.mark.parametrize("words", [("doctor",), ("jobs", "list")])
def test_a_wrong_password_is_named_with_what_to_check(
    command: Run, url: str, words: tuple[str, ...]
) -> None:
    password = urlsplit(url).password
    if not password:
        pytest.skip("the server takes every user without a password")
    ran = command(*words, "--url", url.replace(password, "guessed"))
    assert ran.code == 5
    assert "refused the login" in ran.err
    assert "Check the user and password of the URL" in ran.err
    assert "guessed" not in ran.out + ran.err
