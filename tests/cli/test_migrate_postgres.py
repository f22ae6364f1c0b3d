"""Migrations run once, one at a time, beside running programs, and block them only briefly."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.cli.conftest import Run, start
from tests.engines.postgres.steps import PATIENCE, fresh, opened, until_it_works, with_options
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from trellis.core.durations import SECOND
from trellis.core.lifecycle import Transition, decide
from trellis.engines.postgres import PostgresEngine, schema
from trellis.engines.postgres.connection import PLAIN, Connection, ServerConnection, connect
from trellis.engines.postgres.statements import migrations, statements
from trellis.engines.postgres.url import read_address
from trellis.engines.values import JobFilter
from trellis.errors import EngineBusy, SchemaTooOld
from trellis.testing.builders import a_demand, a_job, a_worker, complete

#: A later version, whose migration needs the table of the queue for itself.
_LATER = (*migrations("trellis"), (99, "alter table trellis.queue add column later int;"))
#: A later version, whose migration lets readers and writers pass.
_NEXT = (*migrations("trellis"), (2, "alter table trellis.queue set (fillfactor = 90);"))
_GATE = "select pg_advisory_lock(hashtextextended('trellis/migrate/trellis', 0))"
#: A session waits for the lock on the table of the queue.
_WAITING = """
    select pid from pg_locks where relation = 'trellis.queue'::regclass and not granted
      and mode = 'AccessExclusiveLock'
"""
_OURS = "select count(*) from pg_stat_activity where application_name = 'trellis' and datname = %s"


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
def sql(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - there is no signal to wait for
        await asyncio.sleep(0.005)


@asynccontextmanager
async def a_link(url: str) -> AsyncIterator[ServerConnection]:
    link = ServerConnection(read_address(url), PLAIN)
    try:
        yield link
    finally:
        await link.close()


# -- one at a time ---------------------------------------------------------------------------------


class Overtaken(Connection):
    """A connection that looks while another process commits the first migration."""

    url = ""

    async def value(self, name: str, *values: Any) -> Any:  # noqa: ANN401 - any value
        if name == "schema_others":
            await PostgresEngine(self.url).migrate()
        return await super().value(name, *values)


async def test_tables_that_appear_during_a_look_are_those_of_trellis(postgres_url: str) -> None:
    address = read_address(postgres_url)
    plain = await connect(address, PLAIN)
    looking = Overtaken(plain.driver, statements(address.schema))
    looking.url = postgres_url
    version = await schema.stored_version(looking, address)
    assert version == schema.latest_version(address.schema)
    await plain.driver.close()


@pytest.mark.on_postgres(16)
def test_of_two_processes_one_migrates_and_the_other_finds_it_done(
    postgres_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as sql:
        sql.execute(_GATE)
        both = [start(tmp_path, "migrate", "--url", postgres_url) for _ in range(2)]
        try:
            while sql.execute(_OURS, [sql.info.dbname]).fetchone() != (2,):
                assert all(each.poll() is None for each in both)
        finally:
            sql.execute("select pg_advisory_unlock_all()")
            text = sorted(each.communicate(timeout=PATIENCE)[0] for each in both)
    assert [each.returncode for each in both] == [0, 0]
    assert "is up to date (schema" in text[0] or "is up to date (schema" in text[1]
    assert sum("was migrated from schema 0 to" in each for each in text) == 1


@pytest.mark.on_postgres(18)
async def test_an_up_to_date_schema_is_only_read(
    url: str, sql: psycopg.Connection[Any], command: Run
) -> None:
    tables = sql.execute("select relname from pg_class where relkind = 'r' and relname <> 'meta' "
                         "and relnamespace = 'trellis'::regnamespace").fetchall()  # fmt: skip
    for (name,) in tables:
        sql.execute(f"lock table trellis.{name} in access exclusive mode")
    sql.execute("lock table trellis.meta in exclusive mode")  # only reading goes with that
    ran = await asyncio.to_thread(command, "migrate", "--url", url)
    assert ran.code == 0
    assert "is up to date (schema" in ran.out


@pytest.mark.on_postgres(18)
def test_the_printed_sql_does_the_same(postgres_url: str, command: Run) -> None:
    printed = command("migrate", "--sql", "--url", postgres_url).out
    assert "pg_advisory_xact_lock" in printed
    assert "lock_timeout" in printed
    with psycopg.connect(postgres_url, autocommit=True) as sql:
        sql.execute(printed.encode())
    assert command("migrate", "--check", "--url", postgres_url).code == 0
    assert command("migrate", "--sql", "--url", postgres_url).out == ""


# -- under load ------------------------------------------------------------------------------------


class _OlderEngine(PostgresEngine):
    """A program of the version before: it is content with the tables of its time."""

    async def _begin(self, connection: Connection) -> None:
        await self._notifications.listen(connection)


async def work(engine: PostgresEngine, created: set[str], enough: asyncio.Event) -> None:
    """Create, claim and complete until asked to stop and nothing is left."""
    session = (await engine.open_session(a_worker(), 600 * SECOND)).id
    while True:
        is_last = enough.is_set()
        if not is_last:
            jobs = [a_job() for _ in range(20)]
            await engine.create(jobs)
            created |= {new.id for new in jobs}
        claimed = await engine.claim(session, [a_demand(limit=20)], 20)
        decisions = [decide(record, complete(record), claimed.now) for record in claimed.jobs]
        await engine.commit([each for each in decisions if isinstance(each, Transition)])
        if is_last and not claimed.jobs:
            return


@pytest.mark.parametrize("scripts", [_NEXT, _LATER], ids=["next", "later"])
async def test_nothing_is_lost_when_tables_change_under_jobs_that_are_created_and_claimed(
    postgres_url: str, scripts: schema.Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: set[str] = set()
    enough = asyncio.Event()
    async with a_link(postgres_url) as link:
        await schema.migrate(link, read_address(postgres_url))
        monkeypatch.setattr(schema, "migrations", lambda _: scripts)
        with pytest.raises(SchemaTooOld, match=r"tables of version 1, .* Run: trellis migrate"):
            await PostgresEngine(postgres_url).open()
        engine = _OlderEngine(postgres_url)
        await engine.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(work(engine, created, enough))
                await until(lambda: len(created) >= 60)
                found = await schema.bring_to(link, read_address(postgres_url), scripts)
                more = len(created) + 60
                await until(lambda: len(created) >= more)
                enough.set()
            assert found == (1, scripts[-1][0])
            states = (await engine.count(JobFilter(), "state")).groups
            assert states == {"completed": len(created)}
        finally:
            await engine.close()


@pytest.mark.on_postgres(18)
async def test_a_migration_that_waits_for_a_table_lets_claims_pass(
    url: str, sql: psycopg.Connection[Any]
) -> None:
    sql.execute("select from trellis.queue")  # a transaction that goes on
    async with a_link(url) as link, opened(url) as engine:
        migrating = asyncio.create_task(schema.bring_to(link, read_address(url), _LATER))
        session = (await engine.open_session(a_worker(), 600 * SECOND)).id
        with psycopg.connect(url, autocommit=True) as look:
            for _ in range(2):
                await until(lambda: look.execute(_WAITING).fetchall() != [])
                await until_it_works(lambda: engine.create([a_job()]))
                claimed = await until_it_works(lambda: engine.claim(session, [a_demand()], 10))
                assert len(claimed.jobs) == 1
        assert not migrating.done()
        sql.rollback()
        assert (await migrating)[1] == 99


@pytest.mark.on_postgres(18)
async def test_a_process_that_blocks_a_migration_is_named(
    url: str, sql: psycopg.Connection[Any]
) -> None:
    sql.execute("set application_name = 'the report'")
    sql.execute("select from trellis.queue")
    async with a_link(url) as link:
        with pytest.raises(EngineBusy, match="could not be changed") as raised:
            await schema.bring_to(link, read_address(url), _LATER, patience=0)
    assert f"pid {sql.info.backend_pid} (the report, idle in transaction for" in str(raised.value)
    assert "Nothing was changed." in str(raised.value)


def test_the_command_in_the_refusal_creates_the_tables(command: Run, postgres_url: str) -> None:
    url = with_options(postgres_url, schema="jobs")
    refused = command("jobs", "list", "--url", url)
    assert refused.code == 5
    line = refused.err.partition("Run: ")[2].partition(" (with the password")[0]
    words = shlex.split(line.replace("***", urlsplit(url).password or ""))
    assert words[0] == "trellis"
    assert command(*words[1:]).code == 0
    assert command("jobs", "list", "--url", url).code == 0
