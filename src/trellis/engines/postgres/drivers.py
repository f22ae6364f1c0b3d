"""The drivers of callers' connections: how each runs a statement with `$1` parameters.

Drivers are recognised by the modules of their classes; none is imported. Statements run through the
object that the caller passed, so that it knows of its transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from trellis.engines.postgres.statements import statements
from trellis.engines.sql.caller_transaction import is_django, other_dialect
from trellis.engines.sql.rows import Row

_FAILED: Final = "25P02"
#: What SQLAlchemy and Django raise without asking the server.
_FAILED_ERRORS: Final = frozenset({"PendingRollbackError", "TransactionManagementError"})
_PARAMETER: Final = re.compile(r"\$(\d+)")


class CallerDriver(Protocol):
    """A caller's connection."""

    #: Whether its statements are really awaited.
    is_async: bool

    async def fetch(self, query: str, *args: Any) -> Sequence[Row]:  # noqa: ANN401 - any value
        """Run one statement; return its rows."""

    async def run(self, query: str) -> None:
        """Run one statement without values."""

    def sqlstate(self, error: BaseException) -> str | None:
        """Return PostgreSQL's code of an error."""

    def has_failed(self, error: BaseException) -> bool:
        """Return whether an error means that the transaction had failed before."""


class CallerStatements:
    """The statements of this engine, run by name through a caller's connection."""

    def __init__(self, driver: CallerDriver, schema: str) -> None:
        self._driver = driver
        self._sql = statements(schema)

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401 - any value
        """Run a statement; return its rows."""
        return await self._driver.fetch(self._sql[name], *values)


class _Driver:
    def __init__(self, connection: Any, *, is_async: bool) -> None:  # noqa: ANN401 - any driver
        self.connection = connection
        self.is_async = is_async

    async def fetch(self, query: str, *args: Any) -> Sequence[Row]:  # noqa: ANN401 - any value
        """Run one statement; return its rows."""
        raise NotImplementedError

    async def run(self, query: str) -> None:
        """Run one statement without values."""
        await self.fetch(query)

    def sqlstate(self, error: BaseException) -> str | None:
        """Return PostgreSQL's code of an error, wherever the driver keeps it."""
        for each in (error, getattr(error, "orig", None), error.__cause__):
            for name in ("sqlstate", "pgcode"):
                state = getattr(each, name, None)
                if isinstance(state, str):
                    return state
        return None

    def has_failed(self, error: BaseException) -> bool:
        """Return whether the server reports so, or the driver without asking it."""
        return self.sqlstate(error) == _FAILED or type(error).__name__ in _FAILED_ERRORS


class _Asyncpg(_Driver):
    async def fetch(self, query: str, *args: Any) -> Sequence[Row]:  # noqa: ANN401
        rows: Sequence[Row] = await self.connection.fetch(query, *args)
        return rows

    async def run(self, query: str) -> None:
        await self.connection.execute(query)


class _Psycopg(_Driver):
    """psycopg 3, synchronous or awaited: raw cursors, which take `$1` parameters."""

    async def fetch(self, query: str, *args: Any) -> Sequence[Row]:  # noqa: ANN401
        import psycopg  # noqa: PLC0415 - the caller has it
        from psycopg.rows import tuple_row  # noqa: PLC0415 - the caller has it

        if self.is_async:
            async with psycopg.AsyncRawCursor(self.connection, row_factory=tuple_row) as cursor:
                await cursor.execute(query.encode(), args or None)
                return await cursor.fetchall() if cursor.description else []
        with psycopg.RawCursor(self.connection, row_factory=tuple_row) as plain:
            plain.execute(query.encode(), args or None)
            return plain.fetchall() if plain.description else []


class _SqlAlchemy(_Driver):
    """SQLAlchemy 2: through its own connection, so that it knows that a transaction has begun."""

    async def fetch(self, query: str, *args: Any) -> Sequence[Row]:  # noqa: ANN401
        connection = self.connection
        if hasattr(connection, "get_bind"):  # a session
            connection = connection.connection()
            if self.is_async:
                connection = await connection
        if connection.dialect.name != "postgresql":
            raise other_dialect(connection.dialect.name, "PostgreSQL")
        text, values = self._in_dialect(connection.dialect, query, args)
        result = connection.exec_driver_sql(text, values)
        if self.is_async:
            result = await result
        return result.fetchall() if result.returns_rows else []

    @staticmethod
    def _in_dialect(dialect: Any, query: str, args: Sequence[Any]) -> tuple[str, Any]:  # noqa: ANN401
        if dialect.paramstyle == "numeric_dollar":
            return query, tuple(args) or None
        return pyformat(query, args)


class _Django(_Driver):
    async def fetch(self, query: str, *args: Any) -> Sequence[Row]:  # noqa: ANN401
        text, values = pyformat(query, args)
        with self.connection.cursor() as cursor:
            cursor.execute(text, values)
            return cursor.fetchall() if cursor.description else []


def pyformat(query: str, args: Sequence[Any]) -> tuple[str, dict[str, Any] | None]:
    """Return a statement with `%(p1)s` for `$1`.

    >>> pyformat("select $1::int % 7", [8])
    ('select %(p1)s::int %% 7', {'p1': 8})
    """
    if not args:
        return query, None
    text = _PARAMETER.sub(r"%(p\1)s", query.replace("%", "%%"))
    return text, {f"p{position}": value for position, value in enumerate(args, 1)}


def driver_for(connection: object) -> CallerDriver | None:
    """Return the driver of a caller's connection; None if it is not known."""
    for cls in type(connection).__mro__:
        package = cls.__module__.partition(".")[0]
        maker = _KNOWN.get((package, cls.__name__))
        if maker is not None:
            return maker(connection)
    if is_django(connection, "postgresql"):
        return _Django(connection, is_async=False)
    return None


_Maker = Callable[[Any], CallerDriver]
_KNOWN: Final[dict[tuple[str, str], _Maker]] = {
    ("asyncpg", "Connection"): lambda c: _Asyncpg(c, is_async=True),
    ("asyncpg", "PoolConnectionProxy"): lambda c: _Asyncpg(c, is_async=True),
    ("psycopg", "AsyncConnection"): lambda c: _Psycopg(c, is_async=True),
    ("psycopg", "Connection"): lambda c: _Psycopg(c, is_async=False),
    ("sqlalchemy", "AsyncConnection"): lambda c: _SqlAlchemy(c, is_async=True),
    ("sqlalchemy", "AsyncSession"): lambda c: _SqlAlchemy(c, is_async=True),
    ("sqlalchemy", "async_scoped_session"): lambda c: _SqlAlchemy(c, is_async=True),
    ("sqlalchemy", "Connection"): lambda c: _SqlAlchemy(c, is_async=False),
    ("sqlalchemy", "Session"): lambda c: _SqlAlchemy(c, is_async=False),
    ("sqlalchemy", "scoped_session"): lambda c: _SqlAlchemy(c, is_async=False),
}
