"""One connection to the server: opened when needed, again after it broke, one call at a time.

What is sent on it is answered, or the caller hears that the outcome is unknown; nothing is repeated
here. A call that gets no answer in time ends the connection: a half-open one would never say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import asyncpg

from trellis import failpoints
from trellis.engines.postgres.address import Address
from trellis.engines.postgres.faults import cannot_connect, is_about_the_connection, translate
from trellis.engines.postgres.preparing import Connection
from trellis.engines.postgres.statements import statements
from trellis.engines.sql.rows import Row
from trellis.errors import EngineClosed

T = TypeVar("T")

#: A process that stands still in the middle of a transaction (stopped, or its host is) keeps its
#: locks, and everybody waits for it: the server undoes it after so many milliseconds.
_STANDS_STILL: Final = {"idle_in_transaction_session_timeout": "5000"}
#: Plans are made once and without looking at statistics, which are always wrong for a queue; the
#: joins that only pay for large tables are off. See docs/adr/0014.
PINNED: Final = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    **_STANDS_STILL,
}
PLAIN: Final = {"jit": "off", **_STANDS_STILL}


class Link:
    """A connection, and the turn-taking on it."""

    def __init__(
        self,
        address: Address,
        settings: dict[str, str],
        on_open: Callable[[Connection], Awaitable[None]] | None = None,
        verb: str = "",
    ) -> None:
        self._address = address
        self._settings = settings
        self._on_open = on_open
        #: What its transactions are for, unless they say so themselves.
        self._verb = verb
        self._sql = statements(address.schema)
        self._begin = "begin"
        if address.pooler == "transaction":
            # Nothing set for a connection would last, so it is set for each transaction.
            self._begin += "".join(f"; set local {name} = {settings[name]}" for name in settings)
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._closed = False

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401 - any value
        """Run a statement in a transaction of its own; return its rows."""
        return await self.query(self._sql[name], *values)

    async def value(self, name: str, *values: Any) -> Any:  # noqa: ANN401 - any value
        """Run a statement in a transaction of its own; return its first value."""
        found = await self.rows(name, *values)
        return found[0][0] if found else None

    async def query(self, text: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401 - any value
        """Run a statement that was put together from pieces."""
        if self._address.pooler == "transaction":
            # The driver speaks twice for one statement; only a transaction keeps it on one server.
            async with self.transaction() as pooled:
                found: Sequence[Row] = await self._fetch(pooled, text, values)
                return found
        async with self._turn:
            connection = await self._connected()
            failpoints.reach("postgres.statement")
            return await self._guarded(connection, self._fetch(connection, text, values))

    async def script(self, text: str) -> None:
        """Run statements without values, together."""
        async with self._turn:
            connection = await self._connected()
            await self._guarded(connection, connection.execute(text))

    async def use(self, action: Callable[[Connection], Awaitable[None]]) -> None:
        """Do something with the connection itself."""
        async with self._turn:
            is_new = self._connection is None or self._connection.is_closed()
            connection = await self._connected()
            if not is_new or self._on_open is None:
                await self._guarded(connection, action(connection), sent=False)

    @asynccontextmanager
    async def transaction(self, verb: str = "") -> AsyncIterator[Connection]:
        """Have the connection for one transaction: committed at the end, undone on any error."""
        async with self._turn:
            connection = await self._connected()
            await self._prepare(connection, verb or self._verb)
            await self._guarded(connection, connection.execute(self._begin), sent=False)
            try:
                yield connection
            except BaseException as error:
                await self._undo(connection, error)
                if isinstance(error, Exception):
                    raise translate(error, self._address, sent=False) from error
                raise
            failpoints.reach("postgres.before-commit")
            await self._guarded(connection, connection.execute("commit"))
            failpoints.reach("postgres.after-commit")

    async def close(self) -> None:
        """Let go of the connection; calls that wait for it raise `EngineClosed`."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                async with asyncio.timeout(1):
                    await connection.close()
            connection.terminate()

    def reopen(self) -> None:
        """Allow connecting again after `close`."""
        self._closed = False

    async def _connected(self) -> Connection:
        if self._closed:
            raise EngineClosed("The engine is closed. Open it again before using it.")
        if self._connection is None or self._connection.is_closed():
            connection = await connect(self._address, self._settings)
            if self._on_open is not None:
                try:
                    await self._guarded(connection, self._on_open(connection), sent=False)
                except BaseException:
                    connection.terminate()  # what it leads to is not what we need
                    raise
            self._connection = connection
        return self._connection

    async def _prepare(self, connection: Connection, verb: str) -> None:
        if verb and self._address.pooler != "transaction" and not connection.is_ready_for(verb):
            call = connection.prepare_for(verb, self._address.schema)
            await self._guarded(connection, call, sent=False)

    @staticmethod
    def _fetch(connection: Connection, text: str, values: Sequence[Any]) -> Awaitable[Any]:
        return connection.fetch(text, *values)

    async def _guarded(self, connection: Connection, call: Awaitable[T], *, sent: bool = True) -> T:
        """Await a call; what breaks it gets one of our names, and a broken connection is left."""
        try:
            async with asyncio.timeout(self._address.statement_timeout):
                return await call
        except asyncio.CancelledError:
            # The statement may be under way: nobody else may read its answer.
            self._drop(connection)
            raise
        except Exception as error:
            if is_about_the_connection(error):
                self._drop(connection)
            raise translate(error, self._address, sent=sent) from error

    async def _undo(self, connection: Connection, error: BaseException) -> None:
        if not isinstance(error, Exception) or is_about_the_connection(error):
            self._drop(connection)
            return
        try:
            async with asyncio.timeout(self._address.statement_timeout):
                await connection.execute("rollback")
        except BaseException:  # noqa: BLE001 - a dropped connection is rolled back by the server
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.terminate()
        if self._connection is connection:
            self._connection = None


async def connect(address: Address, settings: dict[str, str]) -> Connection:
    """Open a connection; say in our words why there is none."""
    options: dict[str, Any] = {"command_timeout": address.statement_timeout}
    if address.pooler == "none":
        options["server_settings"] = {"application_name": "trellis", **settings}
    if address.pooler == "transaction":
        options["statement_cache_size"] = 0
    else:
        options |= {"statement_cache_size": 250, "max_cached_statement_lifetime": 0}
    try:
        async with asyncio.timeout(address.connect_timeout):
            connection: Connection = await asyncpg.connect(
                address.dsn, connection_class=Connection, **options
            )
            if address.pooler == "session":
                # A pooler takes no settings at the start of a connection.
                await connection.execute("".join(f"set {k} = {settings[k]};" for k in settings))
            return connection
    except Exception as error:
        raise cannot_connect(error, address) from error
