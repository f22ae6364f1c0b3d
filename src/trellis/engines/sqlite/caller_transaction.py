"""`create` inside the caller's own transaction, on the caller's own connection.

The caller's commit decides, so nothing here commits and nothing is remembered. After a failure,
everything since the savepoint is undone. The caller's settings stay: rows and texts are read
independently of them, and only automatic checkpoints are changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from trellis.core.job import NewJob
from trellis.engines.clock import Clock
from trellis.engines.sql.caller_transaction import (
    failed_transaction,
    is_django,
    no_transaction,
    other_dialect,
    sqlalchemy_class,
)
from trellis.engines.sql.rows import Row
from trellis.engines.sqlite import schema, storage
from trellis.engines.sqlite.connection import SAFE_RELEASE
from trellis.engines.sqlite.errors import is_busy, typed
from trellis.engines.sqlite.registry import Registry
from trellis.engines.sqlite.transaction import STATEMENTS, Transaction
from trellis.engines.values import CreateResult
from trellis.errors import DatabaseMissing, EngineBusy, TransactionRefused

#: `Connection.autocommit` (Python 3.12) when `isolation_level` decides, as it always did before.
_LEGACY: Final = -1


def create_within(
    path: Path, clock: Clock, connection: object, jobs: Sequence[NewJob]
) -> list[CreateResult]:
    """Admit and store new jobs in the caller's transaction."""
    connection = _inside_sqlalchemy(_inside_django(connection), path)
    if not isinstance(connection, sqlite3.Connection):
        raise TransactionRefused(
            f"The jobs are kept in {path}, so they can only join a transaction of the sqlite3 "
            f"module; {type(connection).__name__} is not a sqlite3.Connection. Nothing was stored. "
            "Pass one, a Session or Connection of SQLAlchemy, or Django's connection, to this file."
        )
    try:
        joined = connection.in_transaction
        with (
            _texts_as_str(connection),
            _undone_on_failure(CallerConnection(connection), path) as caller,
        ):
            _take_write_lock(caller, path)
            _leave_checkpoints_to_the_engine(caller)
            # Numbers found here may be rolled back by the caller: they are forgotten with the call.
            return storage.create_jobs(Transaction(caller, clock, Registry()), jobs)
    except sqlite3.ProgrammingError as error:
        # Closed, or of another thread: the message of the sqlite3 module is clear.
        raise TransactionRefused(
            f"This connection cannot be used here: {str(error).rstrip('.')}. Nothing was stored."
        ) from error
    except sqlite3.Error as error:
        reason = _explained(error, path)
        if joined and not connection.in_transaction:
            reason = type(reason)(f"{reason} SQLite has rolled back your whole transaction.")
        raise reason from error
    except UnicodeEncodeError as error:
        raise typed(error, path) from error


def _inside_django(connection: Any) -> Any:  # noqa: ANN401 - any object may be given
    """Return the sqlite3 connection of a Django connection; return any other object unchanged."""
    if not is_django(connection, "sqlite"):
        return connection
    if connection.get_autocommit():
        raise no_transaction("Create it inside `with transaction.atomic():`.")
    if connection.needs_rollback:
        raise failed_transaction("Leave its atomic block first.")
    return connection.connection


def _inside_sqlalchemy(connection: Any, path: Path) -> Any:  # noqa: ANN401 - any object
    """Return the sqlite3 connection of one of SQLAlchemy; return any other object unchanged."""
    found = sqlalchemy_class(connection)
    if found is None:
        return connection
    if "async" in found.lower():
        raise TransactionRefused(
            f"The jobs are kept in {path}. SQLAlchemy's {found} uses SQLite in "
            "a thread of its own, whose transaction cannot be joined. Nothing was stored. Use a "
            "Session or Connection of create_engine('sqlite:///...') for this transaction."
        )
    try:
        inner = connection if found == "Connection" else connection.connection()
    except Exception as error:
        if type(error).__name__ == "PendingRollbackError":
            raise failed_transaction("Roll it back first.") from error
        raise
    if inner.dialect.name != "sqlite":
        raise other_dialect(inner.dialect.name, str(path))
    if not inner.in_transaction():
        inner.begin()  # otherwise its commit would do nothing
    return inner.connection.dbapi_connection


class CallerConnection:
    """A caller's connection, used through new cursors: its row factory does not apply to them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:  # noqa: ANN401
        """Run one statement."""
        return sqlite3.Cursor(self._connection).execute(statement, values)

    @property
    def in_transaction(self) -> bool:
        """Whether the caller has one open."""
        return self._connection.in_transaction

    @property
    def begins_automatically(self) -> bool:
        """Whether the sqlite3 module would begin a transaction before a write of the caller."""
        autocommit = getattr(self._connection, "autocommit", _LEGACY)
        if autocommit == _LEGACY:
            return self._connection.isolation_level is not None
        return not autocommit


@contextmanager
def _texts_as_str(connection: sqlite3.Connection) -> Iterator[None]:
    """Read texts as `str`, even if the caller reads them as something else."""
    before = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = before


@contextmanager
def _undone_on_failure(caller: CallerConnection, path: Path) -> Iterator[CallerConnection]:
    """Join the caller's transaction, or begin it; after a failure, undo everything done inside."""
    _refuse_other_files(caller, path)
    joined = caller.in_transaction
    if not joined:
        _begin(caller)
    caller.execute(STATEMENTS["caller_savepoint"])
    try:
        yield caller
    except BaseException:
        # SQLite may have rolled everything back already; then there is no savepoint any more.
        with suppress(sqlite3.Error):
            caller.execute(STATEMENTS["caller_undo" if joined else "rollback"])
            caller.execute(STATEMENTS["caller_release"])
        raise
    caller.execute(STATEMENTS["caller_release"])


def _begin(caller: CallerConnection) -> None:
    """Begin the caller's transaction as the sqlite3 module would before a write."""
    if not caller.begins_automatically:
        raise no_transaction("It begins none automatically. Execute BEGIN IMMEDIATE first.")
    caller.execute(STATEMENTS["begin"])


def _refuse_other_files(caller: CallerConnection, path: Path) -> None:
    """Refuse a connection whose commit would not include the tables of the engine."""
    if not path.exists():
        raise DatabaseMissing(
            f"There is no database at {path}. Check the URL, or run "
            f"`trellis migrate --url sqlite:///{path}` to create it."
        )
    files = {name: file for _, name, file in caller.execute(STATEMENTS["database_list"])}
    main = files.pop("main", "")
    if _is_same(main, path):
        _refuse_hard_link(Path(main).resolve(), path)
        return
    what = f"is to {main}" if main else "is to a database in memory"
    for name, file in files.items():
        if _is_same(file, path):
            raise TransactionRefused(
                f"This connection {what} and has {path} attached as {name!r}. SQLite commits "
                "attached files one after the other, so a crash could keep your rows and lose the "
                f"job. Connect to {path} itself."
            )
    raise TransactionRefused(
        f"This connection {what}, but the jobs are kept in {path}: they cannot be committed "
        f"together. Connect to {path}, or point the service's URL at your database."
    )


def _refuse_hard_link(file: Path, path: Path) -> None:
    if file.name != path.name or not file.parent.samefile(path.parent):
        raise TransactionRefused(
            f"This connection has opened {path} by another name, {file}. SQLite keeps one log per "
            "name, so two names can damage the file. Connect to the name the engine has."
        )


def _is_same(file: str, path: Path) -> bool:
    try:
        return bool(file) and path.samefile(file)
    except OSError:
        return False  # deleted under an open connection


def _take_write_lock(caller: CallerConnection, path: Path) -> None:
    """Take the write lock before reading anything; then check that the tables are the engine's."""
    shadow = caller.execute(STATEMENTS["caller_shadows"]).fetchone()
    if shadow is not None:
        raise TransactionRefused(
            f"This connection has a temporary table {shadow[0]}, which hides the one in {path}. "
            "Drop it, or use another connection."
        )
    try:
        caller.execute(STATEMENTS["caller_gate"])
        version = caller.execute(STATEMENTS["caller_version"]).fetchone()
    except sqlite3.OperationalError as error:
        # A look at a file that is only locked would fix what this transaction can see of it.
        if not is_busy(error):
            schema.check_version(caller, path)
        raise
    if version != ("schema", schema.latest_version()):
        _refuse_converters(version, path)
        schema.check_version(caller, path)


def _leave_checkpoints_to_the_engine(caller: CallerConnection) -> None:
    """Keep the caller's commit from checkpointing while the engine does.

    Old releases of SQLite corrupt the file then (`connection.py`). This is the only setting of the
    caller that is changed.
    """
    if sqlite3.sqlite_version_info < SAFE_RELEASE:
        caller.execute(STATEMENTS["set_wal_autocheckpoint"])


def _refuse_converters(row: Row | None, path: Path) -> None:
    """Refuse a connection that converts the texts and integers in the engine's tables."""
    if row is not None and [type(value) for value in row] != [str, int]:
        raise TransactionRefused(
            "This connection converts columns declared as text or integer (detect_types= and "
            f"register_converter), so the tables in {path} cannot be read through it. Use a "
            "connection without detect_types."
        )


def _explained(error: sqlite3.Error, path: Path) -> Exception:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return EngineBusy(
            f"Another program has written to {path} since your transaction began to read, so it "
            "can no longer write. Nothing was stored; roll back and try again, with BEGIN "
            "IMMEDIATE at the beginning."
        )
    if is_busy(error):
        return EngineBusy(
            f"{path} is locked by another writer. Nothing was stored; roll back and try again. "
            "BEGIN IMMEDIATE, or a longer timeout= of sqlite3.connect, waits for the lock."
        )
    return typed(error, path)
