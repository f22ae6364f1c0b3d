"""One connection to the server: opened when needed, again after it broke, one call at a time.

Each call is answered, or raises an error if the outcome is unknown; nothing is repeated
here. A call that gets no answer in time closes the connection, because a half-open connection
reports nothing. A wait for a lock is ended by the server much earlier, and the error names who
holds the lock (`blockers.py`).

Statements are prepared before a transaction begins, not in the middle of it. The driver prepares in
two steps, and between them the server waits for the client without being idle. A process that is
stopped at that moment would keep its locks until it continues: no timeout of the server applies. So
all statements in the files of a verb are prepared before its transaction, once per connection.
(Behind a transaction pooler nothing can be prepared: there the timeouts of the pooler must end such
a client.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import asyncpg

from trellis import failpoints
from trellis.engines.postgres.blockers import Watch
from trellis.engines.postgres.errors import cannot_connect, is_about_the_connection, translate
from trellis.engines.postgres.statements import fragments, names_in, names_of_reads, statements
from trellis.engines.postgres.url import Address
from trellis.engines.sql.rows import Row
from trellis.errors import EngineClosed

T = TypeVar("T")

#: A process that is stopped in the middle of a transaction keeps its locks, and all others wait for
#: them: the server rolls the transaction back after this many milliseconds.
_STOPPED: Final = {"idle_in_transaction_session_timeout": "5000"}
#: Plans are made once and without statistics, which are always wrong for a queue; the joins that
#: are only useful for large tables are off. See docs/adr/0014.
PINNED: Final = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    **_STOPPED,
}
PLAIN: Final = {"jit": "off", **_STOPPED}
#: The files of what creates jobs, and of what follows the end of one.
_CREATE: Final = (
    "common", "create", "slots", "key_rates", "commit", "followups", "batches", "locks", "limits",
    "audit", "fairness",
)  # fmt: skip
#: The files of statements that the transactions of a verb run.
FILES: Final[dict[str, tuple[str, ...]]] = {
    "create": (*_CREATE, "dependencies", "maintenance"),
    "claim": ("common", "claim", "limits", "key_rates"),
    "commit": (
        "common", "commit", "slots", "key_rates", "locks", "limits", "audit", "dependencies",
    ),
    "followups": (*_CREATE, "dependencies", "maintenance"),
    "batches": (*_CREATE, "dependencies", "maintenance"),
    "dependencies": (*_CREATE, "dependencies", "maintenance"),
    "notes": ("common", "notes"),
    "sessions": ("common", "sessions", "slots", "key_rates", "locks", "limits", "audit"),
    "locks": ("common", "locks"),
    "maintenance": (
        "common",
        "maintenance",
        "archive",
        "feed",
        "slots",
        "key_rates",
        "locks",
        "limits",
        "batches",
        "audit",
        "fairness",
        "tokens",
    ),
    "queues": ("common", "queues", "audit"),
    "limits": ("common", "limits", "key_rates", "audit"),
    "schedules": (*_CREATE, "dependencies", "maintenance", "schedules"),
    "contracts": ("common", "contracts", "audit"),
    "tokens": ("common", "tokens", "audit"),
    "projection": (
        "common", "projection", "batches", "maintenance", "notes", "feed", "archive", "schedules",
        "contracts",
    ),
}  # fmt: skip


class Connection:
    """A connection of the driver, and the statements prepared on it."""

    def __init__(
        self, driver: asyncpg.Connection, sql: dict[str, str], *, prepares: bool = True
    ) -> None:
        #: For what is not a statement by name.
        self.driver = driver
        self._sql = sql
        self._prepares = prepares
        #: How each prepared statement is run.
        self._prepared: dict[str, Callable[..., Awaitable[Any]]] = {}
        self._verbs: set[str] = set()

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401 - any value
        """Run a statement; return its rows."""
        run = self._prepared.get(name) or await self._prepare(name)
        try:
            rows: Sequence[Row] = await run(*values)
        except asyncpg.InvalidCachedStatementError:
            # A migration has changed the columns it returns. Nothing was done yet.
            self._prepared.clear()
            self._verbs.clear()
            if self.driver.is_in_transaction():
                raise
            rows = await (await self._prepare(name))(*values)
        return rows

    async def value(self, name: str, *values: Any) -> Any:  # noqa: ANN401 - any value
        """Run a statement; return its first value."""
        found = await self.rows(name, *values)
        return found[0][0] if found else None

    async def run(self, name: str) -> None:
        """Run a statement without values that returns nothing."""
        await self.driver.execute(self._sql[name])

    def is_ready_for(self, verb: str) -> bool:
        """Return whether all statements of a verb are prepared."""
        return verb in self._verbs or not self._prepares

    async def prepare_for(self, verb: str) -> None:
        """Prepare all statements of a verb."""
        for name in names_in(FILES[verb]):
            if name not in self._prepared:
                await self._prepare(name)
        self._verbs.add(verb)

    async def _prepare(self, name: str) -> Callable[..., Awaitable[Any]]:
        if not self._prepares:
            return partial(self.driver.fetch, self._sql[name])
        statement = await self.driver.prepare(self._sql[name])
        self._prepared[name] = statement.fetch
        return statement.fetch


class ServerConnection:
    """A connection that is opened when needed and used by one call at a time."""

    def __init__(
        self,
        address: Address,
        settings: dict[str, str],
        on_open: Callable[[Connection], Awaitable[None]] | None = None,
        verb: str = "",
    ) -> None:
        self._address = address
        self._settings = settings | _limits(address)
        self._on_open = on_open
        #: The verb of its transactions, unless they name another.
        self._verb = verb
        self._sql = statements(address.schema)
        self._reads = names_of_reads()
        self._begin = self._sql["begin"]
        if address.pooler == "transaction":
            # Nothing set for a connection would last, so it is set for each transaction.
            self._begin += _settings(address, "setting_of_transaction", self._settings)
        #: Called when a call had no answer in time: other connections may be silent, too.
        self.on_silence: Callable[[], None] = lambda: None
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._closed = False
        self._watch = Watch(address, partial(connect, address, PLAIN, self._sql))

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401 - any value
        """Run a statement in a separate transaction; return its rows."""
        if self._address.pooler == "transaction":
            # The driver sends two messages for one statement; only a transaction keeps them on one
            # server connection.
            async with self.transaction() as pooled:
                return await pooled.rows(name, *values)
        async with self._turn:
            connection = await self._connected()
            failpoints.reach("postgres.statement")
            call = connection.rows(name, *values)
            return await self._guarded(connection, call, sent=name not in self._reads)

    async def value(self, name: str, *values: Any) -> Any:  # noqa: ANN401 - any value
        """Run a statement in a separate transaction; return its first value."""
        found = await self.rows(name, *values)
        return found[0][0] if found else None

    async def query(self, text: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401 - any value
        """Run a statement that was put together from pieces, and reads."""
        if self._address.pooler == "transaction":
            async with self.transaction() as pooled:
                found: Sequence[Row] = await self._composed(pooled, text, values)
                return found
        async with self._turn:
            connection = await self._connected()
            failpoints.reach("postgres.statement")
            call = self._composed(connection, text, values)
            return await self._guarded(connection, call, sent=False)

    @staticmethod
    def _composed(connection: Connection, text: str, values: Sequence[Any]) -> Awaitable[Any]:
        return connection.driver.fetch(text, *values)

    async def script(self, text: str) -> None:
        """Run statements without values, together."""
        async with self._turn:
            connection = await self._connected()
            await self._guarded(connection, connection.driver.execute(text))

    async def use(self, action: Callable[[Connection], Awaitable[None]]) -> None:
        """Do something with the connection itself."""
        async with self._turn:
            is_new = self._connection is None or self._connection.driver.is_closed()
            connection = await self._connected()
            if not is_new or self._on_open is None:
                await self._guarded(connection, action(connection), sent=False)

    @asynccontextmanager
    async def transaction(self, verb: str = "") -> AsyncIterator[Connection]:
        """Run one transaction on the connection: committed at the end, rolled back on any error."""
        async with self._turn:
            connection = await self._connected()
            await self._prepare(connection, verb or self._verb)
            await self._guarded(connection, connection.driver.execute(self._begin), sent=False)
            self._watch.start(connection)
            try:
                yield connection
            except BaseException as error:
                await self._undo(connection, error)
                if isinstance(error, Exception):
                    found = self._watch.found
                    raise translate(error, self._address, sent=False, blockers=found) from error
                raise
            finally:
                self._watch.stop()
            failpoints.reach("postgres.before-commit")
            await self._guarded(connection, connection.run("commit"))
            failpoints.reach("postgres.after-commit")

    async def close(self) -> None:
        """Close the connection; calls that wait for it raise `EngineClosed`."""
        self._closed = True
        connection, self._connection = self._connection, None
        await self._watch.close()
        if connection is not None:
            with suppress(Exception):
                async with asyncio.timeout(1):
                    await connection.driver.close()
            connection.driver.terminate()

    def limit_calls(self, seconds: float) -> None:
        """Wait at most this long for an answer or a new connection, from the next call on.

        A half-open connection reports nothing: this is how long a worker waits for it.
        """
        limit = self._address
        self._address = replace(
            limit,
            statement_timeout=min(limit.statement_timeout, seconds),
            connect_timeout=min(limit.connect_timeout, seconds),
        )

    def drop_if_idle(self) -> None:
        """Use a new connection for the next call, unless a call is under way."""
        if self._connection is not None and not self._turn.locked():
            self._drop(self._connection)

    def reopen(self) -> None:
        """Allow connecting again after `close`."""
        self._closed = False

    async def _connected(self) -> Connection:
        if self._closed:
            raise EngineClosed("The engine is closed. Open it again before using it.")
        if self._connection is None or self._connection.driver.is_closed():
            connection = await connect(self._address, self._settings, self._sql)
            if self._on_open is not None:
                try:
                    await self._guarded(connection, self._on_open(connection), sent=False)
                except BaseException:
                    connection.driver.terminate()  # it leads to the wrong database or schema
                    raise
            self._connection = connection
        return self._connection

    async def _prepare(self, connection: Connection, verb: str) -> None:
        if verb and not connection.is_ready_for(verb):
            await self._guarded(connection, connection.prepare_for(verb), sent=False)

    async def _guarded(self, connection: Connection, call: Awaitable[T], *, sent: bool = True) -> T:
        """Await a call; raise an error of Trellis if it fails, and drop a broken connection."""
        self._watch.start(connection)
        try:
            async with asyncio.timeout(self._address.statement_timeout):
                return await call
        except asyncio.CancelledError:
            # The statement may still be running: no other call may read its answer.
            self._drop(connection)
            raise
        except Exception as error:
            if is_about_the_connection(error):
                self._drop(connection)
            if isinstance(error, TimeoutError):
                self.on_silence()
            found = self._watch.found
            raise translate(error, self._address, sent=sent, blockers=found) from error
        finally:
            self._watch.stop()

    async def _undo(self, connection: Connection, error: BaseException) -> None:
        if not isinstance(error, Exception) or is_about_the_connection(error):
            self._drop(connection)
            return
        try:
            async with asyncio.timeout(self._address.statement_timeout):
                await connection.run("rollback")
        except BaseException:  # noqa: BLE001 - a dropped connection is rolled back by the server
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.driver.terminate()
        if self._connection is connection:
            self._connection = None


async def connect(
    address: Address, settings: dict[str, str], sql: dict[str, str] | None = None
) -> Connection:
    """Open a connection that runs these statements; raise an error of Trellis if that fails."""
    options: dict[str, Any] = {"command_timeout": address.statement_timeout}
    if address.pooler == "none":
        options["server_settings"] = {"application_name": "trellis", **settings}
    if address.pooler == "transaction":
        options["statement_cache_size"] = 0
    else:
        options["max_cached_statement_lifetime"] = 0
    try:
        async with asyncio.timeout(address.connect_timeout):
            driver = await asyncpg.connect(address.dsn, **options)
            if address.pooler == "session":
                # A pooler takes no settings at the start of a connection.
                await driver.execute(_settings(address, "setting_of_connection", settings))
            prepares = address.pooler != "transaction"
            return Connection(driver, sql or statements(address.schema), prepares=prepares)
    except Exception as error:
        raise cannot_connect(error, address) from error


def _limits(address: Address) -> dict[str, str]:
    return {"lock_timeout": str(int(address.lock_timeout * 1000))}


def _settings(address: Address, fragment: str, settings: dict[str, str]) -> str:
    text = fragments(address.schema)[fragment]
    return "".join(text.format(name=name, value=value) for name, value in settings.items())
