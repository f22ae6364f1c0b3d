"""The transactions of a test in which jobs are created: their jobs wait for the commit.

A sandbox stores nothing in the database of the program, so it watches the caller's connection: a
commit makes its jobs visible, a rollback removes them, also of a savepoint. Each driver reports in
its own way: `sqlite3` by its trace callback, asyncpg by a query logger, psycopg by the commands it
sends, SQLAlchemy by events, Django by `on_commit`. The block of a Django `TestCase` is never
committed; jobs are visible there when the blocks inside it have ended.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from trellis.client.transactions import actual_connection
from trellis.core.job import JobId
from trellis.errors import TransactionRefused

#: Called with jobs whose transaction has ended, and whether it was committed.
Settle = Callable[[Sequence[JobId], bool], None]
_STATEMENT: Final = re.compile(
    r"\s*(BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE)\b"
    r"(?:\s+(?:TRANSACTION|WORK))?(\s+TO)?(?:\s+SAVEPOINT)?(?:\s+([^\s;]+))?",
    re.IGNORECASE,
)


class Watch(Protocol):
    """Observes the transactions of one connection."""

    @property
    def is_waiting(self) -> bool:
        """Whether jobs wait for the end of a transaction."""

    def begin(self) -> Awaitable[object] | None:
        """Begin a transaction where the engine would; raise `TransactionRefused` otherwise.

        What is returned must be awaited first.
        """

    def hold(self, ids: Sequence[JobId]) -> None:
        """Hold these jobs until the present transaction ends."""

    def look(self) -> None:
        """Find out what the driver does not report."""

    def close(self) -> None:
        """Stop observing."""


class Transactions:
    """The connections that a sandbox observes."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        # The connections are kept, so that an id stays that of its connection.
        self._watches: dict[int, tuple[object, Watch]] = {}

    def find(self, connection: object) -> Watch | None:
        """Return what observes this connection; None if it is not one of a known driver."""
        connection = actual_connection(connection)
        if id(connection) not in self._watches:
            make = _maker(connection)
            if make is None:
                return None
            self._forget_idle()
            self._watches[id(connection)] = connection, make(connection, self._settle)
        return self._watches[id(connection)][1]

    def look(self) -> None:
        """Find out what drivers do not report."""
        for _, watch in tuple(self._watches.values()):
            watch.look()

    def close(self) -> None:
        """Stop observing."""
        for number in tuple(self._watches):
            self._forget(number)

    def _forget_idle(self) -> None:
        """Stop observing connections without jobs; a test may use any number of sessions."""
        for number, (_, watch) in tuple(self._watches.items()):
            if not watch.is_waiting:
                self._forget(number)

    def _forget(self, number: int) -> None:
        with suppress(Exception):  # the connection is closed, or belongs to another thread
            self._watches.pop(number)[1].close()


def _maker(connection: object) -> Callable[[Any, Settle], Watch] | None:
    if hasattr(connection, "in_atomic_block"):
        return _Django
    for cls in type(connection).__mro__:
        found = _MAKERS.get((cls.__module__.partition(".")[0], cls.__name__))
        if found is not None:
            return found
    return None


def _no_transaction(advice: str) -> TransactionRefused:
    return TransactionRefused(
        f"This connection has no open transaction that the job could join. {advice}"
    )


# -- drivers that show their statements --------------------------------------------------------


class _Held(NamedTuple):
    ids: Sequence[JobId]
    #: How many of the known savepoints were set before.
    depth: int


class _Statements:
    """Follows transactions and savepoints by the statements of a connection."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._savepoints: list[str] = []
        self._held: list[_Held] = []

    @property
    def is_waiting(self) -> bool:
        """Whether jobs wait for the end of a transaction."""
        return bool(self._held)

    def hold(self, ids: Sequence[JobId]) -> None:
        """Hold these jobs until the present transaction or savepoint ends."""
        self._held.append(_Held(ids, len(self._savepoints)))

    def saw(self, text: str) -> None:
        """Take note of the statements in a text."""
        for part in text.split(";"):
            found = _STATEMENT.match(part)
            if found is not None:
                word, to, name = found.groups()
                self._saw(word.upper(), name if to or word.upper() in _NAMED else None)

    def _saw(self, word: str, name: str | None) -> None:
        match word:
            case "SAVEPOINT":
                self._savepoints.append(_plain(name))
            case "RELEASE":
                self.release(_plain(name))
            case "ROLLBACK" | "ABORT" if name is not None:
                self.undo(_plain(name))
            case "COMMIT" | "END":
                self.end(committed=True)
            case _:  # a rollback, or a beginning after a rollback that was not shown
                self.end(committed=False)

    def release(self, name: str) -> None:
        """Let what was done since the savepoint belong to what is around it."""
        if name in self._savepoints:
            depth = self._depth_of(name)
            del self._savepoints[depth:]
            self._held = [_Held(ids, min(before, depth)) for ids, before in self._held]

    def undo(self, name: str) -> None:
        """Undo what was done since the savepoint; an unknown one is older than every held job."""
        depth = self._depth_of(name) if name in self._savepoints else -1
        undone = [each for each in self._held if each.depth > depth]
        self._held = [each for each in self._held if each.depth <= depth]
        del self._savepoints[depth + 1 :]
        self._settle([job for each in undone for job in each.ids], False)

    def end(self, *, committed: bool) -> None:
        """End the transaction."""
        held, self._held = self._held, []
        self._savepoints.clear()
        self._settle([job for each in held for job in each.ids], committed)

    def _depth_of(self, name: str) -> int:
        return len(self._savepoints) - 1 - self._savepoints[::-1].index(name)


_NAMED: Final = frozenset({"SAVEPOINT", "RELEASE"})


def _plain(name: str | None) -> str:
    return (name or "").strip("\"'`[]").lower()


class _Observed:
    """A connection whose statements are observed."""

    def __init__(self, settle: Settle) -> None:
        self._statements = _Statements(settle)

    @property
    def is_waiting(self) -> bool:
        """Whether jobs wait for the end of a transaction."""
        return self._statements.is_waiting

    def hold(self, ids: Sequence[JobId]) -> None:
        """Hold these jobs."""
        self._statements.hold(ids)


class _Sqlite(_Observed):
    """A connection of `sqlite3`; its trace callback is taken while the sandbox is open."""

    def __init__(self, connection: sqlite3.Connection, settle: Settle) -> None:
        super().__init__(settle)
        self._connection = connection
        connection.set_trace_callback(self._statements.saw)

    def begin(self) -> None:
        """Begin a transaction as the module would before a write."""
        if self._connection.in_transaction:
            return
        autocommit = getattr(self._connection, "autocommit", -1)
        if self._connection.isolation_level is None if autocommit == -1 else autocommit:
            raise _no_transaction("Execute BEGIN IMMEDIATE first.")
        self._connection.execute("BEGIN")

    def look(self) -> None:
        """See whether the release of an outermost savepoint was a commit."""
        with suppress(sqlite3.Error):  # closed, or of another thread
            if self._statements.is_waiting and not self._connection.in_transaction:
                self._statements.end(committed=True)

    def close(self) -> None:
        """Give the trace callback back."""
        self._connection.set_trace_callback(None)


class _Asyncpg(_Observed):
    def __init__(self, connection: Any, settle: Settle) -> None:  # noqa: ANN401 - the driver's
        super().__init__(settle)
        self._connection = getattr(connection, "_con", connection)  # of a pool
        self._transaction: Any = None
        self._connection.add_query_logger(self._log)

    def begin(self) -> Awaitable[object]:
        """Refuse a connection without a transaction; let the loop call loggers that are due."""
        if not self._connection.is_in_transaction():
            raise _no_transaction("Write `async with connection.transaction():` around it.")
        return asyncio.sleep(0)

    def hold(self, ids: Sequence[JobId]) -> None:
        """Hold these jobs."""
        self._transaction = getattr(self._connection, "_top_xact", None)
        super().hold(ids)

    def look(self) -> None:
        """See whether the transaction was committed: its loggers are called a moment later."""
        state = getattr(getattr(self._transaction, "_state", None), "name", "")
        if self._statements.is_waiting and state == "COMMITTED":
            self._statements.end(committed=True)

    def close(self) -> None:
        """Remove the logger."""
        self._connection.remove_query_logger(self._log)

    def _log(self, record: Any) -> None:  # noqa: ANN401 - the driver's
        if record.exception is None:
            self._statements.saw(record.query)


class _Psycopg(_Observed):
    """A connection of psycopg 3; both kinds send commands by the same generator."""

    def __init__(self, connection: Any, settle: Settle) -> None:  # noqa: ANN401 - the driver's
        super().__init__(settle)
        self._connection = connection
        self._send = connection._exec_command  # noqa: SLF001 - all its commits go through it
        connection._exec_command = self._exec_command  # noqa: SLF001 - as above

    def begin(self) -> Awaitable[object] | None:
        """Let the driver begin its transaction, as any statement does."""
        if self._connection.info.transaction_status:
            return None
        if self._connection.autocommit:
            raise _no_transaction("Write `with connection.transaction():` around it.")
        started = self._connection.execute("select 1")
        return started if isinstance(started, Awaitable) else None

    def look(self) -> None:
        """Do nothing: every end is reported."""

    def close(self) -> None:
        """Let commands pass unobserved."""
        del self._connection._exec_command  # noqa: SLF001 - the attribute set above

    def _exec_command(
        self,
        command: Any,  # noqa: ANN401 - the driver's
        *rest: Any,  # noqa: ANN401 - the driver's
        **options: Any,  # noqa: ANN401 - the driver's
    ) -> Generator[Any, Any, Any]:
        result = yield from self._send(command, *rest, **options)
        text = command if isinstance(command, str | bytes) else command.as_bytes(self._connection)
        self._statements.saw(text if isinstance(text, str) else text.decode())
        return result


# -- SQLAlchemy --------------------------------------------------------------------------------


class _Listeners:
    """Listeners of SQLAlchemy's events on one object."""

    def __init__(self, target: object, **listeners: Callable[..., None]) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - the caller has it

        self._event = event
        self._target = target
        self._listeners = listeners
        for name, listener in listeners.items():
            event.listen(target, name, listener)

    def remove(self) -> None:
        """Remove them."""
        for name, listener in self._listeners.items():
            self._event.remove(self._target, name, listener)


class _SqlAlchemyConnection:
    def __init__(self, connection: Any, settle: Settle) -> None:  # noqa: ANN401 - the driver's
        self._connection = getattr(connection, "sync_connection", connection)
        self._settle = settle
        #: Jobs, and the names of the savepoints that they were created in.
        self._held: list[tuple[Sequence[JobId], frozenset[str]]] = []
        self._listeners = _Listeners(
            self._connection,
            commit=lambda _: self._end(committed=True),
            rollback=lambda _: self._end(committed=False),
            rollback_savepoint=lambda _, name, __: self._undo(name),
        )

    @property
    def is_waiting(self) -> bool:
        """Whether jobs wait for the end of a transaction."""
        return bool(self._held)

    def begin(self) -> None:
        """Begin, as SQLAlchemy does before any statement."""
        if not self._connection.in_transaction():
            self._connection.begin()

    def hold(self, ids: Sequence[JobId]) -> None:
        """Hold these jobs."""
        names = set()
        nested = self._connection.get_nested_transaction()
        while nested is not None:
            names.add(nested._savepoint)  # noqa: SLF001 - an event of a savepoint has only its name
            nested = nested._previous_nested  # noqa: SLF001 - as above
        self._held.append((ids, frozenset(names)))

    def look(self) -> None:
        """Do nothing: every end is reported."""

    def close(self) -> None:
        """Remove the listeners."""
        self._listeners.remove()

    def _undo(self, name: str) -> None:
        undone = [ids for ids, names in self._held if name in names]
        self._held = [each for each in self._held if name not in each[1]]
        self._settle([job for ids in undone for job in ids], False)

    def _end(self, *, committed: bool) -> None:
        held, self._held = self._held, []
        self._settle([job for ids, _ in held for job in ids], committed)


class _SqlAlchemySession:
    """A session: its own commit counts, also inside an outer transaction of the test."""

    def __init__(self, session: Any, settle: Settle) -> None:  # noqa: ANN401 - the driver's
        self._session = getattr(session, "sync_session", session)
        self._settle = settle
        #: Jobs, and the transaction of the session whose end decides about them.
        self._held: list[tuple[Sequence[JobId], Any]] = []
        self._committed: Any = None
        self._listeners = _Listeners(
            self._session, after_commit=self._note_commit, after_transaction_end=self._end
        )

    @property
    def is_waiting(self) -> bool:
        """Whether jobs wait for the end of a transaction."""
        return bool(self._held)

    def begin(self) -> None:
        """Begin, as a session does before any statement."""
        if not self._session.in_transaction():
            self._session.begin()

    def hold(self, ids: Sequence[JobId]) -> None:
        """Hold these jobs."""
        self._held.append((ids, self._innermost))

    def look(self) -> None:
        """Do nothing: every end is reported."""

    def close(self) -> None:
        """Remove the listeners."""
        self._listeners.remove()

    @property
    def _innermost(self) -> Any:  # noqa: ANN401 - SQLAlchemy's
        return self._session.get_nested_transaction() or self._session.get_transaction()

    def _note_commit(self, _: object) -> None:
        self._committed = self._innermost

    def _end(self, _: object, transaction: Any) -> None:  # noqa: ANN401 - SQLAlchemy's
        """Settle the jobs of a transaction; those of a committed savepoint wait for its parent."""
        is_committed = transaction is self._committed
        if is_committed and transaction.parent is not None:
            self._held = [
                (ids, transaction.parent if each is transaction else each)
                for ids, each in self._held
            ]
            return
        ended = [ids for ids, each in self._held if each is transaction]
        self._held = [each for each in self._held if each[1] is not transaction]
        self._settle([job for ids in ended for job in ids], is_committed)


# -- Django ------------------------------------------------------------------------------------


class _Django:
    """A connection of Django: it forgets the functions of `on_commit` that a rollback undoes."""

    def __init__(self, connection: Any, settle: Settle) -> None:  # noqa: ANN401 - Django's
        self._connection = connection
        self._settle = settle
        self._held: dict[Callable[[], None], Sequence[JobId]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether jobs wait for the end of a transaction."""
        return bool(self._held)

    def begin(self) -> None:
        """Refuse a connection outside of an atomic block, and a block that has failed."""
        if self._connection.get_autocommit():
            raise _no_transaction("Create it inside `with transaction.atomic():`.")
        if self._connection.needs_rollback:
            raise TransactionRefused(
                "Your transaction has failed before, so nothing can join it. Leave its atomic "
                "block first."
            )

    def hold(self, ids: Sequence[JobId]) -> None:
        """Hold these jobs."""

        def commit() -> None:
            self._settle(self._held.pop(commit, ()), True)

        self._held[commit] = ids
        self._connection.on_commit(commit)

    def look(self) -> None:
        """Remove what was rolled back; in a `TestCase`, commit what only its own block holds."""
        if not self._held:
            return
        waiting = [function for _, function, _ in self._connection.run_on_commit]
        for function in [each for each in self._held if each not in waiting]:
            self._settle(self._held.pop(function), False)
        if all(block._from_testcase for block in self._connection.atomic_blocks):  # noqa: SLF001 - Django's own mark
            for function in tuple(self._held):
                function()

    def close(self) -> None:
        """Do nothing: a function that is still to be called finds no job."""
        self._held.clear()


_MAKERS: Final[dict[tuple[str, str], Callable[[Any, Settle], Watch]]] = {
    ("sqlite3", "Connection"): _Sqlite,
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("psycopg", "BaseConnection"): _Psycopg,
    ("sqlalchemy", "AsyncConnection"): _SqlAlchemyConnection,
    ("sqlalchemy", "Connection"): _SqlAlchemyConnection,
    ("sqlalchemy", "AsyncSession"): _SqlAlchemySession,
    ("sqlalchemy", "Session"): _SqlAlchemySession,
}
