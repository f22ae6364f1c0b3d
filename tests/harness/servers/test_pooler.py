"""Both drivers through the pooler: what a transaction pooler takes away is really gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest
from psycopg.pq import ExecStatus

from tests.harness.servers.address import Address
from tests.harness.servers.pipeline import ask_at_once, next_answer
from tests.harness.servers.pooler import Pooler
from tests.harness.servers.postgres import Server

pytestmark = pytest.mark.on_postgres(18)


@pytest.fixture
def pooler(postgres_pooler: Pooler, postgres_url: str) -> Pooler:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table plants (name text)")
    return postgres_pooler


@pytest.fixture
def plain(pooler: Pooler) -> Iterator[psycopg.Connection]:
    """A client that prepares nothing, each statement a transaction."""
    with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as connection:
        yield connection


async def test_asyncpg_works_without_named_statements(pooler: Pooler) -> None:
    connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
    async with connection.transaction():
        await connection.executemany("insert into plants values ($1)", [["fern"], ["moss"]])
        await connection.copy_records_to_table("plants", records=[["sage"]])
    assert await connection.fetchval("select count(*) from plants where name <> $1", "fern") == 2
    await connection.close()


def test_psycopg_works_without_named_statements(plain: psycopg.Connection) -> None:
    with plain.transaction():
        plain.execute("insert into plants values (%s)", ["fern"])
        with plain.cursor().copy("copy plants from stdin") as copy:
            copy.write_row(["moss"])
    with plain.pipeline():
        found = [plain.execute("select name from plants order by 1") for _ in range(3)]
    assert [cursor.fetchall() for cursor in found] == [[("fern",), ("moss",)]] * 3


def test_transactions_asked_at_once_are_answered_in_order(plain: psycopg.Connection) -> None:
    line = plain.pgconn
    ask_at_once(line, b"select 1", b"no sql", b"begin", b"commit")
    ok, rows, wrong = ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.FATAL_ERROR
    for expected in (rows, wrong, ok, ok):
        answers = [next_answer(line) for _ in range(3)]
        assert answers == [expected, None, ExecStatus.PIPELINE_SYNC]
    line.exit_pipeline_mode()


def test_transactions_land_on_different_connections_and_stay_there(
    plain: psycopg.Connection,
) -> None:
    def pid() -> object:
        return plain.execute("select pg_backend_pid()").fetchone()

    assert pid() != pid()
    with plain.transaction():
        assert pid() == pid()


def test_a_failed_transaction_keeps_its_connection_until_it_ends(
    plain: psycopg.Connection,
) -> None:
    plain.execute("begin")
    with pytest.raises(psycopg.errors.SyntaxError):
        plain.execute("no sql")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        plain.execute("select 1")
    plain.execute("rollback")
    assert plain.execute("select 1").fetchone() == (1,)


def test_session_settings_do_not_survive(plain: psycopg.Connection) -> None:
    plain.execute("set statement_timeout to '77s'")
    seen = {plain.execute("show statement_timeout").fetchone() for _ in range(2)}
    assert seen == {("0",), ("77s",)}  # lost for this client, and left behind for others


def test_the_settings_that_pgbouncer_tracks_go_along(pooler: Pooler) -> None:
    url = f"{pooler.url}&application_name=o'brien"
    with psycopg.connect(url, autocommit=True) as first, psycopg.connect(pooler.url) as other:
        first.execute("set timezone to 'Asia/Tokyo'")
        for _ in range(3):
            assert first.execute("show application_name").fetchone() == ("o'brien",)
            assert first.execute("show timezone").fetchone() == ("Asia/Tokyo",)
            assert other.execute("show timezone").fetchone() == ("UTC",)
            other.commit()
        assert other.execute("show application_name").fetchone() == ("",)


async def test_named_statements_break(pooler: Pooler) -> None:
    connection = await asyncpg.connect(pooler.url)
    statement = await connection.prepare("select 1")
    await statement.fetch()  # prepared and run before a Sync, so still on one connection
    with pytest.raises(asyncpg.InvalidSQLStatementNameError):
        await statement.fetch()
    connection.terminate()
    other = psycopg.connect(pooler.url, autocommit=True)
    with other, pytest.raises(psycopg.errors.InvalidSqlStatementName):
        other.execute("select 1", prepare=True)


async def test_listen_hears_nothing(pooler: Pooler, postgres_url: str) -> None:
    heard: list[object] = []
    listener = await asyncpg.connect(pooler.url, statement_cache_size=0)
    await listener.add_listener("news", lambda *news: heard.append(news))
    direct = await asyncpg.connect(postgres_url)
    known: asyncio.Queue[object] = asyncio.Queue()
    await direct.add_listener("news", lambda *news: known.put_nowait(news))
    await direct.execute("notify news")
    await known.get()
    for _ in range(4):  # round trips over every server connection
        await listener.execute("select 1")
    assert not heard
    listener.terminate()
    await direct.close()


async def test_unknown_start_up_parameters_are_refused(pooler: Pooler) -> None:
    with pytest.raises(asyncpg.PostgresError, match="unsupported startup parameter: jit"):
        await asyncpg.connect(pooler.url, server_settings={"jit": "off"})
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter: options"):
        psycopg.connect(f"{pooler.url}&options=-cjit%3Doff")
    taken = {"application_name": "x", "extra_float_digits": "1", "timezone": "UTC"}
    connection = await asyncpg.connect(pooler.url, server_settings=taken)
    await connection.close()


def test_strangers_are_not_let_in(pooler: Pooler) -> None:
    address = Address.of(pooler.url)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(address.url.replace(address.password, "guessed"))
    with pytest.raises(psycopg.OperationalError, match="no such database: other"):
        psycopg.connect(address.url.replace(address.database, "other"))


async def test_many_clients_share_a_few_connections(pooler: Pooler, postgres_url: str) -> None:
    async def visit() -> int:
        connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
        async with connection.transaction():
            await connection.execute("insert into plants values ('fern')")
            pid = await connection.fetchval("select pg_backend_pid()")
        await connection.close()
        return int(pid)

    pids = await asyncio.gather(*(visit() for _ in range(8)))
    assert len(set(pids)) <= 2
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select count(*) from plants").fetchone() == (8,)


def test_a_client_that_leaves_in_mid_transaction_leaves_nothing(pooler: Pooler) -> None:
    for _ in range(3):  # more often than there are connections
        leaver = psycopg.connect(pooler.url)
        leaver.execute("insert into plants values ('fern')")
        leaver.close()
    with psycopg.connect(pooler.url) as connection:
        assert connection.execute("select count(*) from plants").fetchone() == (0,)


async def test_a_query_can_be_cancelled(pooler: Pooler, postgres_url: str) -> None:
    connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
    direct = await asyncpg.connect(postgres_url)
    asleep = asyncio.create_task(connection.execute("select pg_sleep(1000)"))
    look = "select count(*) from pg_stat_activity where query ~ '^select pg_sleep'"
    while not await direct.fetchval(look):
        assert not asleep.done()
    asleep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asleep
    assert await connection.fetchval("select 1") == 1
    await connection.close()
    await direct.close()


def test_it_survives_the_server(own_postgres: Server) -> None:
    with Pooler(own_postgres.tcp_url()) as pooler:
        with psycopg.connect(pooler.url) as connection:
            connection.execute("select 1")
            own_postgres.restart()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        for _ in range(3):
            with psycopg.connect(pooler.url) as connection:
                assert connection.execute("select 1").fetchone() == (1,)
        own_postgres.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(pooler.url)
        own_postgres.start()
        psycopg.connect(pooler.url).close()
