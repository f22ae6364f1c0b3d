"""Both drivers through the fault proxy: each fault is seen by the client and means what it says."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import LiteralString

import asyncpg
import psycopg
import pytest
from psycopg.pq import ExecStatus

from tests.harness.servers.address import Address
from tests.harness.servers.pipeline import ask_at_once, next_answer
from tests.harness.servers.postgres import Server
from tests.harness.servers.proxy import Proxy

pytestmark = pytest.mark.on_postgres(18)

#: What a driver says when its connection is gone.
CUT = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)


@pytest.fixture
def proxy(postgres_proxy: Proxy, postgres_url: str) -> Proxy:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table plants (name text)")
    return postgres_proxy


@pytest.fixture
def plants(postgres_url: str) -> Callable[[], list[str]]:
    """What is in the table, asked on a good connection."""

    def ask() -> list[str]:
        with psycopg.connect(postgres_url) as connection:
            return [name for (name,) in connection.execute("select name from plants order by 1")]

    return ask


def test_psycopg_gets_through(proxy: Proxy, plants: Callable[[], list[str]]) -> None:
    with psycopg.connect(proxy.url) as connection:
        connection.execute("insert into plants select repeat('x', 300000)")
        assert connection.execute("select length(name) from plants").fetchone() == (300000,)
        assert proxy.connections == 1
    assert [len(name) for name in plants()] == [300000]


async def test_asyncpg_gets_through_also_when_it_asks_for_tls_first(proxy: Proxy) -> None:
    url = proxy.url.replace("sslmode=disable", "sslmode=prefer")
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("select n from generate_series(1, $1::int) n", 5000)
    assert [row["n"] for row in rows] == list(range(1, 5001))
    await connection.close()


async def test_a_query_can_be_cancelled_through_it(proxy: Proxy) -> None:
    connection = await asyncpg.connect(proxy.url)
    asleep = asyncio.create_task(connection.execute("select pg_sleep(1000)"))
    while not await _is_running(proxy, "pg_sleep"):
        assert not asleep.done()
    asleep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asleep
    assert await connection.fetchval("select 1") == 1
    await connection.close()


async def _is_running(proxy: Proxy, text: str) -> bool:
    look = await asyncpg.connect(proxy.url)
    query = "select count(*) from pg_stat_activity where query ~ $1 and pid <> pg_backend_pid()"
    found = await look.fetchval(query, f"^select {text}")
    await look.close()
    return bool(found)


async def test_dropped_connections_fail_at_once_and_new_ones_work(proxy: Proxy) -> None:
    first = await asyncpg.connect(proxy.url)
    waiting = asyncio.create_task(first.execute("select pg_sleep(1000)"))
    while not await _is_running(proxy, "pg_sleep"):
        assert not waiting.done()
    proxy.drop()
    with pytest.raises(CUT):
        await waiting
    second = await asyncpg.connect(proxy.url)
    assert await second.fetchval("select 1") == 1
    await second.close()


def test_refused_is_for_new_connections_and_ends(proxy: Proxy) -> None:
    with psycopg.connect(proxy.url) as old:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(proxy.url)
        assert old.execute("select 1").fetchone() == (1,)
    proxy.accept()
    psycopg.connect(proxy.url).close()


async def test_a_frozen_network_answers_nothing_and_delivers_late(
    proxy: Proxy, plants: Callable[[], list[str]]
) -> None:
    connection = await asyncpg.connect(proxy.url)
    proxy.freeze()
    insert = asyncio.create_task(connection.execute("insert into plants values ('fern')"))
    with pytest.raises(TimeoutError):
        await asyncpg.connect(proxy.url, timeout=0.05)
    assert not insert.done()
    assert plants() == []
    proxy.thaw()
    await insert
    assert plants() == ["fern"]
    await connection.close()


async def test_open_connections_can_fall_silent_while_new_ones_work(
    proxy: Proxy, plants: Callable[[], list[str]]
) -> None:
    silent = await asyncpg.connect(proxy.url)
    proxy.mute()
    with pytest.raises(TimeoutError):
        await silent.execute("insert into plants values ('fern')", timeout=0.05)
    other = await asyncpg.connect(proxy.url)
    await other.execute("insert into plants values ('moss')")
    assert plants() == ["moss"]
    await other.close()
    silent.terminate()


def test_a_client_that_leaves_a_frozen_network_is_not_missed(proxy: Proxy) -> None:
    address = Address.of(proxy.url)
    with psycopg.connect(proxy.url) as leaver:
        proxy.freeze()
        with socket.socket(fileno=os.dup(leaver.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)  # without a word
        with socket.create_connection((address.host, address.port)):
            proxy.wait_for_connections(2)  # so the proxy has looked after that
            for _ in range(100):
                assert proxy.connections == 2  # half open: the server still holds its end
                proxy.delay(0)
            proxy.thaw()
            proxy.wait_for_connections(1)


async def test_only_the_answers_may_be_frozen(
    proxy: Proxy, plants: Callable[[], list[str]]
) -> None:
    connection = await asyncpg.connect(proxy.url)
    proxy.freeze(requests=False)
    insert = asyncio.create_task(connection.execute("insert into plants values ('fern')"))
    while not await asyncio.to_thread(plants):
        assert not insert.done()
    assert not insert.done()
    proxy.thaw(forget=True)
    with pytest.raises(CUT):
        await insert


def test_delayed_bytes_arrive(proxy: Proxy) -> None:
    with psycopg.connect(proxy.url) as connection, ThreadPoolExecutor(1) as pool:
        proxy.delay(3600)
        asked = pool.submit(lambda: connection.execute("select 1").fetchone())
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.05)
        proxy.delay(0)
        proxy.drop()  # those that began to wait keep waiting: an hour would be too long
        with pytest.raises(psycopg.OperationalError):
            asked.result()
    proxy.delay(0.001)
    with psycopg.connect(proxy.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


async def test_asyncpg_does_not_learn_of_a_commit_that_happened(
    proxy: Proxy, plants: Callable[[], list[str]]
) -> None:
    connection = await asyncpg.connect(proxy.url)
    loss = proxy.lose_next_reply(to="COMMIT")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("insert into plants values ('fern')")
    assert not loss.happened
    with pytest.raises(CUT):
        await transaction.commit()
    loss.wait()
    assert plants() == ["fern"]


@pytest.mark.parametrize("words", ["commit", "end"])
def test_psycopg_does_not_learn_of_a_commit_that_happened(
    proxy: Proxy, plants: Callable[[], list[str]], words: LiteralString
) -> None:
    loss = proxy.lose_next_reply(to="COMMIT")
    with psycopg.connect(proxy.url, autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("insert into plants values ('fern')")
        with pytest.raises(psycopg.OperationalError):
            connection.execute(words)
    loss.wait()
    assert plants() == ["fern"]


async def test_the_answer_to_a_prepared_statement_can_be_lost(
    proxy: Proxy, plants: Callable[[], list[str]]
) -> None:
    connection = await asyncpg.connect(proxy.url)
    insert = await connection.prepare("insert into plants values ($1)")
    await insert.fetch("fern")
    loss = proxy.lose_next_reply(to="insert into plants")
    assert await connection.fetchval("select count(*) from plants") == 1
    assert not loss.happened
    with pytest.raises(CUT):
        await insert.fetch("moss")
    loss.wait()
    assert plants() == ["fern", "moss"]


def test_answers_before_the_lost_one_get_through(
    proxy: Proxy, plants: Callable[[], list[str]]
) -> None:
    loss = proxy.lose_next_reply(to="moss")
    with psycopg.connect(proxy.url) as connection:
        line = connection.pgconn
        ask_at_once(line, *(b"insert into plants values ('%s')" % n for n in (b"fern", b"moss")))
        answers = [next_answer(line) for _ in range(3)]
        assert answers == [ExecStatus.COMMAND_OK, None, ExecStatus.PIPELINE_SYNC]
        with pytest.raises(psycopg.OperationalError):
            next_answer(line)
    loss.wait()
    assert plants() == ["fern", "moss"]


async def test_a_lost_request_never_runs(proxy: Proxy, plants: Callable[[], list[str]]) -> None:
    connection = await asyncpg.connect(proxy.url)
    loss = proxy.lose_next_request(to="COMMIT")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("insert into plants values ('fern')")
    with pytest.raises(CUT):
        await transaction.commit()
    loss.wait()
    assert plants() == []


def test_an_order_is_carried_out_once(proxy: Proxy) -> None:
    proxy.lose_next_reply(to="select 7")
    with psycopg.connect(proxy.url) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("select 7")
    with psycopg.connect(proxy.url) as connection:
        assert connection.execute("select 7").fetchone() == (7,)


def test_an_order_nobody_met_says_so(proxy: Proxy) -> None:
    with pytest.raises(TimeoutError, match="no such words"):
        proxy.lose_next_reply(to="no such words").wait(0)


def test_it_stands_before_tcp_and_survives_the_server(own_postgres: Server) -> None:
    with Proxy(own_postgres.tcp_url()) as proxy:
        with psycopg.connect(proxy.url) as connection:
            own_postgres.stop()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.url)
        own_postgres.start()
        psycopg.connect(proxy.url).close()
