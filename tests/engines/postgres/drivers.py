"""How applications talk to PostgreSQL: each driver's own transaction behind the same steps.

Plain drivers run in a thread of their own, as an application's would; `join` creates jobs there.
"""

# ruff: noqa: ANN401 - drivers have nothing in common but their steps
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar

import asyncpg
import django  # type: ignore[import-untyped]
import django.conf  # type: ignore[import-untyped]
import psycopg
import sqlalchemy
from django.db import connection as django_connection  # type: ignore[import-untyped]
from django.db import connections, transaction
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tests.harness.servers.address import Address
from trellis.core.job import NewJob
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import CreateResult

T = TypeVar("T")


class Caller(Protocol):
    """A caller's connection with a transaction under way, or none if it commits by itself."""

    @property
    def tx(self) -> Any:
        """What is given as `tx=`."""

    async def execute(self, query: str) -> None:
        """Run one statement of the caller's."""

    async def commit(self) -> None:
        """Commit."""

    async def rollback(self) -> None:
        """Roll back."""

    async def use(self, action: Callable[[], T | Awaitable[T]]) -> T:
        """Do something where the connection is used."""


async def join(engine: PostgresEngine, caller: Caller, *jobs: NewJob) -> list[CreateResult]:
    """Create jobs in the caller's transaction."""
    return await caller.use(lambda: engine.create_within(caller.tx, jobs))


class Awaited:
    """A driver whose calls are awaited."""

    def __init__(self, tx: Any, steps: Any = None) -> None:
        self.tx = tx
        self._steps = tx if steps is None else steps

    async def execute(self, query: str) -> None:
        is_sqlalchemy = type(self.tx).__module__.startswith("sqlalchemy")
        await self.tx.execute(sqlalchemy.text(query) if is_sqlalchemy else query)

    async def commit(self) -> None:
        await self._steps.commit()

    async def rollback(self) -> None:
        await self._steps.rollback()

    async def use(self, action: Callable[[], T | Awaitable[T]]) -> T:
        result: Any = action()
        return await result  # type: ignore[no-any-return] # what the action promised


class Plain:
    """A driver that blocks, in a thread of its own."""

    def __init__(self, thread: ThreadPoolExecutor, tx: Any, steps: Any = None) -> None:
        self.tx = tx
        self._thread = thread
        self._steps = tx if steps is None else steps

    async def execute(self, query: str) -> None:
        is_sqlalchemy = type(self.tx).__module__.startswith("sqlalchemy")
        await self.use(lambda: self._run(sqlalchemy.text(query) if is_sqlalchemy else query))

    def _run(self, query: Any) -> None:
        if self.tx is not django_connection:
            self.tx.execute(query)
            return
        with django_connection.cursor() as cursor:
            cursor.execute(query)

    async def commit(self) -> None:
        await self.use(self._steps.commit)

    async def rollback(self) -> None:
        await self.use(self._steps.rollback)

    async def use(self, action: Callable[[], T | Awaitable[T]]) -> T:
        result: Any = await asyncio.get_running_loop().run_in_executor(self._thread, action)
        return result  # type: ignore[no-any-return] # what the action promised


# -- asyncpg ---------------------------------------------------------------------------------------


@asynccontextmanager
async def with_asyncpg(url: str, autocommit: bool) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    try:
        yield await _begun(connection, autocommit)
    finally:
        await connection.close()


@asynccontextmanager
async def with_asyncpg_pool(url: str, autocommit: bool) -> AsyncIterator[Caller]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        yield await _begun(connection, autocommit)


async def _begun(connection: Any, autocommit: bool) -> Caller:
    if autocommit:
        return Awaited(connection)
    steps = connection.transaction()
    await steps.start()
    return Awaited(connection, steps)


# -- psycopg ---------------------------------------------------------------------------------------


@asynccontextmanager
async def with_psycopg_async(url: str, autocommit: bool) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=autocommit) as connection:
        yield Awaited(connection)
        await connection.rollback()


@contextmanager
def with_psycopg(url: str, autocommit: bool) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=autocommit) as connection:
        yield connection, None
        connection.rollback()


# -- SQLAlchemy ------------------------------------------------------------------------------------


def _dialect(url: str, driver: str) -> sqlalchemy.URL:
    to = Address.of(url)
    socket = {"host": to.host, "port": str(to.port)} if to.host.startswith("/") else {}
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        to.user,
        to.password or None,
        None if socket else to.host,
        None if socket else to.port,
        to.database,
        socket,
    )


def _settings(autocommit: bool) -> dict[str, Any]:
    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    return {"poolclass": sqlalchemy.NullPool, **level}


@contextmanager
def with_core(url: str, autocommit: bool) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(_dialect(url, "psycopg"), **_settings(autocommit))
    with engine.connect() as connection:
        yield connection, None


@contextmanager
def with_orm(url: str, autocommit: bool) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(_dialect(url, "psycopg"), **_settings(autocommit))
    with orm.Session(engine) as session:
        yield session, None


@contextmanager
def with_scoped_orm(url: str, autocommit: bool) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(_dialect(url, "psycopg"), **_settings(autocommit))
    session = orm.scoped_session(orm.sessionmaker(engine))
    try:
        yield session, None
    finally:
        session.remove()


def with_async_core(driver: str) -> Way:
    @asynccontextmanager
    async def way(url: str, autocommit: bool) -> AsyncIterator[Caller]:
        engine = sqlalchemy_asyncio.create_async_engine(
            _dialect(url, driver), **_settings(autocommit)
        )
        async with engine.connect() as connection:
            yield Awaited(connection)

    return way


def with_async_orm(driver: str) -> Way:
    @asynccontextmanager
    async def way(url: str, autocommit: bool) -> AsyncIterator[Caller]:
        engine = sqlalchemy_asyncio.create_async_engine(
            _dialect(url, driver), **_settings(autocommit)
        )
        async with sqlalchemy_asyncio.AsyncSession(engine) as session:
            yield Awaited(session)

    return way


# -- Django ----------------------------------------------------------------------------------------


class _Atomic:
    """`transaction.atomic`, ended by a call instead of by leaving a block."""

    def __init__(self) -> None:
        self._block = transaction.atomic()
        self._block.__enter__()

    def commit(self) -> None:
        self._block.__exit__(None, None, None)

    def rollback(self) -> None:
        transaction.set_rollback(True)
        self._block.__exit__(None, None, None)


@contextmanager
def with_django(url: str, autocommit: bool) -> Iterator[Any]:
    to = Address.of(url)
    if not django.conf.settings.configured:
        engine = "django.db.backends.postgresql"
        django.conf.settings.configure(DATABASES={"default": {"ENGINE": engine}})
        django.setup()
    connections.databases["default"].update(
        NAME=to.database, USER=to.user, PASSWORD=to.password, HOST=to.host, PORT=to.port
    )
    try:
        yield django_connection, None if autocommit else _Atomic()
    finally:
        connections.close_all()


# -- all of them -----------------------------------------------------------------------------------

Way = Callable[[str, bool], Any]


def _in_a_thread(way: Callable[[str, bool], AbstractContextManager[Any]]) -> Way:
    @asynccontextmanager
    async def run(url: str, autocommit: bool) -> AsyncIterator[Caller]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            context = way(url, autocommit)
            tx, steps = await loop.run_in_executor(thread, context.__enter__)
            try:
                yield Plain(thread, tx, steps)
            finally:
                await loop.run_in_executor(thread, context.__exit__, None, None, None)

    return run


WAYS: dict[str, Way] = {
    "asyncpg": with_asyncpg,
    "asyncpg-pool": with_asyncpg_pool,
    "psycopg": _in_a_thread(with_psycopg),
    "psycopg-async": with_psycopg_async,
    "sqlalchemy": _in_a_thread(with_core),
    "sqlalchemy-session": _in_a_thread(with_orm),
    "sqlalchemy-scoped-session": _in_a_thread(with_scoped_orm),
    "sqlalchemy-async-psycopg": with_async_core("psycopg"),
    "sqlalchemy-async-asyncpg": with_async_core("asyncpg"),
    "sqlalchemy-async-session-psycopg": with_async_orm("psycopg"),
    "sqlalchemy-async-session-asyncpg": with_async_orm("asyncpg"),
    "django": _in_a_thread(with_django),
}
