"""Jobs created with `tx=` in a sandbox: there after the commit, never there after a rollback."""

from __future__ import annotations

import gc
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.engines.postgres.steps import fresh
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from trellis import JobNotFound, Outcome, PerKey, Service, TransactionOpen, TransactionRefused
from trellis.testing import Sandbox, sandbox

app = Service("post")


@app.job
async def send(text: str) -> str:
    return text


@app.job(per_key=PerKey("box/{to}"))
async def deliver(letter: dict[str, str]) -> None: ...


@app.job
async def announce(text: str) -> str:
    return text


@announce.on_finished
async def record(outcome: Outcome) -> None: ...


class Undo(Exception):
    """Leaves a block with a rollback."""


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with sandbox() as box:
        yield box


def texts(box: Sandbox) -> list[str]:
    return [job.payload for job in box.created(send)]


# -- sqlite3 -----------------------------------------------------------------------------------


def test_a_job_appears_with_the_commit_of_sqlite3(box: Sandbox) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        ref = send.create_sync("kept", tx=connection)
        assert texts(box) == []
        assert box.run_all_sync() == 0
        with pytest.raises(TransactionOpen):
            ref.status_sync()
        connection.commit()
    assert texts(box) == ["kept"]
    assert box.run_all_sync() == 1
    assert ref.wait_sync() == "kept"


def test_a_rollback_fires_no_hook(box: Sandbox) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        announce.create_sync("gone", tx=connection)
        connection.rollback()
    assert box.run_all_sync() == 0
    assert box.created(record) == []


def test_a_job_vanishes_with_the_rollback_of_sqlite3(box: Sandbox) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table letters (text)")
        connection.execute("insert into letters values ('gone')")
        ref = send.create_sync("gone", tx=connection)
        connection.rollback()
        send.create_sync("kept", tx=connection)
        connection.commit()
        send.create_sync("closed", tx=connection)
    assert texts(box) == ["kept"]
    with pytest.raises(JobNotFound, match="was rolled back"):
        ref.status_sync()
    assert box.run_all_sync() == 1
    box.assert_empty()


def test_savepoints_of_sqlite3_decide_about_their_own_jobs(box: Sandbox) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("SAVEPOINT whole")
        send.create_sync("first", tx=connection)
        connection.execute('savepoint "Part"')
        send.create_sync("undone", tx=connection)
        connection.execute("rollback transaction to savepoint part")
        send.create_sync("second", tx=connection)
        connection.execute("RELEASE part")
        assert texts(box) == []
        connection.execute("release savepoint whole")
        assert texts(box) == ["first", "second"]


def test_an_autocommit_connection_is_refused_as_by_the_engine(box: Sandbox) -> None:
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as connection,
        pytest.raises(TransactionRefused, match="no open transaction"),
    ):
        send.create_sync("letter", tx=connection)
    assert texts(box) == []


def test_keys_and_dedupe_of_a_rolled_back_job_are_free_again(box: Sandbox) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        deliver.create_sync({"to": "ada"}, tx=connection)
        first = send.create_sync("one", tx=connection, dedupe="x", idempotency_key="y")
        assert send.create_sync("one", tx=connection, dedupe="x", idempotency_key="y") == first
        connection.rollback()
    deliver.create_sync({"to": "ada"})
    assert send.create_sync("two", dedupe="x", idempotency_key="y") != first
    assert box.run_all_sync() == 2


def test_a_handler_may_use_a_transaction_too(box: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "post.db"

    @app.job
    def pass_on(text: str) -> None:
        with closing(sqlite3.connect(path)) as connection:
            send.create_sync(text, tx=connection)
            connection.commit()
            send.create_sync("gone", tx=connection)

    pass_on.create_sync("letter")
    assert box.run_all_sync() == 2
    assert texts(box) == ["letter"]


# -- SQLAlchemy --------------------------------------------------------------------------------


def test_a_connection_of_sqlalchemy_decides(box: Sandbox) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        send.create_sync("kept", tx=connection)
        part = connection.begin_nested()
        send.create_sync("undone", tx=connection)
        part.rollback()
        with connection.begin_nested():
            send.create_sync("kept too", tx=connection)
        assert texts(box) == []
        connection.commit()
        assert texts(box) == ["kept", "kept too"]
        send.create_sync("rolled back", tx=connection)
        connection.rollback()
        send.create_sync("closed", tx=connection)
    engine.dispose()
    assert texts(box) == ["kept", "kept too"]


def test_a_session_of_sqlalchemy_decides(box: Sandbox) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with Session(engine) as session:
        send.create_sync("kept", tx=session)
        part = session.begin_nested()
        send.create_sync("undone", tx=session)
        part.rollback()
        with session.begin_nested():
            send.create_sync("kept too", tx=session)
        assert texts(box) == []
        session.commit()
        assert texts(box) == ["kept", "kept too"]
        send.create_sync("rolled back", tx=session)
        session.rollback()
        send.create_sync("closed", tx=session)
    engine.dispose()
    assert texts(box) == ["kept", "kept too"]


def test_sessions_without_jobs_are_not_kept(box: Sandbox) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    ended: list[weakref.ref[Session]] = []
    for number in range(3):
        with Session(engine) as session:
            send.create_sync(f"letter {number}", tx=session)
            session.commit()
            ended.append(weakref.ref(session))
        del session
    engine.dispose()
    gc.collect()
    assert [each() is None for each in ended] == [True, True, False]
    assert len(texts(box)) == 3


def test_the_commit_of_a_session_counts_inside_a_transaction_of_the_test(box: Sandbox) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            send.create_sync("kept", tx=session)
            session.commit()
            assert texts(box) == ["kept"]
            send.create_sync("gone", tx=session)
        outer.rollback()
    engine.dispose()
    assert texts(box) == ["kept"]


# -- drivers of PostgreSQL ---------------------------------------------------------------------


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def test_a_transaction_of_asyncpg_decides(box: Sandbox, url: str) -> None:
    async def in_part(connection: asyncpg.Connection, text: str) -> None:
        async with connection.transaction():
            await send.create(text, tx=connection)
            if text == "undone":
                raise Undo

    connection = await asyncpg.connect(url)
    try:
        with pytest.raises(TransactionRefused, match="no open transaction"):
            await send.create("letter", tx=connection)
        async with connection.transaction():
            await send.create("kept", tx=connection)
            with pytest.raises(Undo):
                await in_part(connection, "undone")
            await in_part(connection, "kept too")
            assert texts(box) == []
        assert texts(box) == ["kept", "kept too"]
        with pytest.raises(Undo):
            await in_part(connection, "undone")
        await connection.execute("begin")
        await send.create("by hand", tx=connection)
        await connection.execute("commit")
    finally:
        await connection.close()
    assert await box.run_all() == 3
    assert texts(box) == ["kept", "kept too", "by hand"]


def test_a_transaction_of_psycopg_decides(box: Sandbox, url: str) -> None:
    with psycopg.connect(url) as connection:
        send.create_sync("kept", tx=connection)
        with connection.transaction():
            send.create_sync("kept too", tx=connection)
        with connection.transaction(force_rollback=True):
            send.create_sync("undone", tx=connection)
        assert texts(box) == []
        connection.commit()
        assert texts(box) == ["kept", "kept too"]
        send.create_sync("gone", tx=connection)
        connection.rollback()
    assert texts(box) == ["kept", "kept too"]


async def test_an_asynchronous_transaction_of_psycopg_decides(box: Sandbox, url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await send.create("kept", tx=connection)
        async with connection.transaction(force_rollback=True):
            await send.create("undone", tx=connection)
        assert texts(box) == []
        await connection.commit()
        await send.create("gone", tx=connection)
        await connection.rollback()
    assert texts(box) == ["kept"]


async def test_an_asynchronous_session_of_sqlalchemy_decides(box: Sandbox, url: str) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session:
        await send.create("kept", tx=session)
        part = await session.begin_nested()
        await send.create("undone", tx=session)
        await part.rollback()
        assert texts(box) == []
        await session.commit()
        await send.create("gone", tx=session)
    async with engine.connect() as connection:
        await send.create("kept too", tx=connection)
        await connection.commit()
        await send.create("gone", tx=connection)
    await engine.dispose()
    assert texts(box) == ["kept", "kept too"]
