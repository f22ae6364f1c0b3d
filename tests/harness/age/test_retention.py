"""What is old goes in pages that cost the same however much there is, and nothing of it stays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from statistics import median

import asyncpg
import psycopg
import pytest

from tests.engines.postgres.steps import fresh, opened
from tests.harness.age.filling import Sql, add_backlog, add_finished
from tests.harness.age.meter import Meter, complete, keep_vacuum_away
from tests.harness.servers.databases import Databases
from trellis import ActiveJob, Service
from trellis.core.job import JobId
from trellis.engines.postgres.connection import Connection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.statements import statements
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import maintenance
from trellis.engines.values import JobFilter

pytestmark = pytest.mark.on_postgres(18)

_PAGE = 500
_LARGE = ("queue", "job", "event", "outcome", "item", "note", "log", "idempotency")
_READ_THROUGH = "select relname, seq_tup_read from pg_stat_user_tables where schemaname = 'trellis'"
_OF_A_JOB = """
    select table_name from information_schema.columns c join information_schema.tables t
      using (table_schema, table_name)
    where table_schema = 'trellis' and column_name = 'job' and table_type = 'BASE TABLE'
"""


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
def sql(url: str) -> Iterator[Sql]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def read_through(sql: Sql) -> dict[str, int]:
    """Return how many rows of each large table were read without an index."""
    return {name: rows for name, rows in sql.execute(_READ_THROUGH) if name in _LARGE}


async def test_a_page_of_pruning_costs_the_same_however_much_is_kept(url: str, sql: Sql) -> None:
    keep_vacuum_away(sql, _LARGE)
    async with opened(url) as engine:
        meter = await Meter.of(engine, sql)
        add_finished(sql, 2 * _PAGE, keep_until=1)
        young = [await meter.pages_of(engine.prune(_PAGE)) for _ in range(2)]
        add_finished(sql, 80_000, keep_until=1)
        before = read_through(sql)
        old = [await meter.pages_of(engine.prune(_PAGE)) for _ in range(10)]
        assert read_through(sql) == before
        assert (await engine.count(JobFilter(), "state")).groups == {"completed": 75_000}
    assert median(old) <= 2 * median(young)


@asynccontextmanager
async def a_prune_under_way(url: str) -> AsyncIterator[Transaction]:
    """Be in the middle of a page of pruning."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            tx = Transaction(Connection(connection, statements("trellis")), Registry())
            assert await maintenance.prune(tx, _PAGE) == _PAGE
            yield tx
    finally:
        await connection.close()


async def test_claims_and_other_pruners_do_not_wait_for_a_page_of_pruning(
    url: str, sql: Sql
) -> None:
    add_finished(sql, 2 * _PAGE, keep_until=1)
    add_backlog(sql, 100)
    async with opened(url) as engine:
        meter = await Meter.of(engine, sql)
        async with a_prune_under_way(url):
            assert await engine.prune(_PAGE) == _PAGE
            _, claimed = await meter.claim()
            await complete(engine, claimed)
        assert (await engine.count(JobFilter(), "state")).groups == {"completed": 100}


async def test_nothing_of_a_pruned_job_stays_but_the_record_that_it_was_here(
    url: str, sql: Sql
) -> None:
    async with Service("shop", url) as shop:

        @shop.job
        async def publish(job: ActiveJob[int]) -> None:
            job.phase("editions")
            job.items.complete("one")
            job.log.info("begun")

        ref = await publish.create(1, idempotency_key="one")
        async with shop.worker():
            await ref.wait("30s")
    tables = {name for (name,) in sql.execute(_OF_A_JOB)}
    had = {name for name in tables if rows_in(sql, name)}
    assert had == {"outcome", "event", "note", "item", "log", "idempotency"}
    sql.execute("update trellis.outcome set keep_until = 1")
    async with opened(url) as engine:
        assert await engine.prune(_PAGE) == 1
        assert (await engine.load([JobId(ref.id)])).removed == {ref.id}
    assert [name for name in {*tables, "job"} if rows_in(sql, name)] == []


def rows_in(sql: Sql, table: str) -> int:
    row = sql.execute(f"select count(*) from trellis.{table}").fetchone()  # noqa: S608
    assert row is not None
    return int(row[0])


def test_autovacuum_comes_often_to_every_table_that_changes(sql: Sql) -> None:
    options = {
        name: dict(each.split("=") for each in found or ())
        for name, found in sql.execute(
            "select relname, reloptions from pg_class where relkind = 'r' and "
            "relnamespace = 'trellis'::regnamespace"
        )
    }
    for table in ("queue", "session", "key_slot", "lock"):  # small, and always changing
        assert options[table]["autovacuum_vacuum_scale_factor"] == "0"
        assert int(options[table]["autovacuum_vacuum_threshold"]) <= 5000
    for table in ("job", "outcome", "event", "item", "log"):  # large, filled and emptied
        assert float(options[table]["autovacuum_vacuum_scale_factor"]) <= 0.05
        assert float(options[table]["autovacuum_vacuum_insert_scale_factor"]) <= 0.05
        assert float(options[table]["autovacuum_analyze_scale_factor"]) <= 0.02
    assert float(options["note"]["autovacuum_vacuum_scale_factor"]) <= 0.02
    assert options["queue"]["autovacuum_vacuum_cost_delay"] == "0"
