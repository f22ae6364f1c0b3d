"""Jobs created inside the caller's own transaction, and what must not be asked until it has ended.

Such a job is stored by the caller's commit. Until then nobody else sees it, so whoever waits for it
would wait for himself; on an engine with one writer nobody else can write, either. That is refused
at once, and only for the task or thread that has the transaction: others may well wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from trellis.core.job import JobId, NewJob
from trellis.engines.port import Engine
from trellis.engines.values import CreateResult
from trellis.errors import TransactionOpen
from trellis.portal import whose_turn


class _Guest(NamedTuple):
    """The last job that this task or thread has created in a transaction of its own."""

    connection: object
    whose: object
    job_id: JobId


#: libpq's words for a connection without a transaction.
_IDLE, _UNKNOWN = 0, 4
_last_guest: Final[ContextVar[_Guest | None]] = ContextVar("trellis_guest", default=None)


def is_open(connection: object) -> bool:
    """Tell whether the caller's connection is known to have a transaction under way."""
    try:
        return _is_open(itself(connection))
    except Exception:  # noqa: BLE001 - the driver's own, for a closed connection
        return False


def _is_open(connection: Any) -> bool:  # noqa: ANN401 - any driver
    if hasattr(connection, "in_atomic_block"):  # Django, which may also be told not to commit
        return connection.in_atomic_block or _is_open(connection.connection)
    if hasattr(connection, "is_in_transaction"):  # asyncpg
        return bool(connection.is_in_transaction())
    if hasattr(connection, "in_transaction"):  # sqlite3; a method of SQLAlchemy
        told = connection.in_transaction
        return bool(told() if callable(told) else told)
    status = getattr(getattr(connection, "info", None), "transaction_status", _IDLE)  # psycopg
    return status not in (_IDLE, _UNKNOWN)


def itself(connection: Any) -> Any:  # noqa: ANN401 - any driver
    """Return what a stand-in for the connection of each thread stands for in this one."""
    match type(connection).__name__:
        case "ConnectionProxy":  # Django
            return connection._connections[connection._alias]  # noqa: SLF001 - no other way
        case "scoped_session" | "async_scoped_session":  # SQLAlchemy
            return connection.registry()
        case _:
            return connection


def create_within(
    engine: Engine, connection: object, jobs: Sequence[NewJob]
) -> list[CreateResult] | Awaitable[list[CreateResult]]:
    """Create in the caller's transaction, in the caller's thread."""
    results = engine.create_within(connection, jobs)
    if jobs:
        _last_guest.set(_Guest(connection, whose_turn(), jobs[-1].id))
    return results


async def refuse_while_open(engine: Engine, awaited: JobId | None = None) -> None:
    """Refuse to wait for the engine while this task or thread keeps it from being written.

    Whoever awaits the very job of the transaction is told better elsewhere.
    """
    guest = _last_guest.get()
    if guest is None or guest.whose != whose_turn() or guest.job_id == awaited:
        return
    if not engine.capabilities.one_writer:
        return
    if is_open(guest.connection) and not _begins_always(guest.connection):
        (record,) = (await engine.load([guest.job_id])).records
        if record is None:
            raise TransactionOpen(
                f"Your transaction with job {guest.job_id} is still open, and nobody can write "
                "before it ends. Commit or roll back first, or create this job with tx=, too.",
                job_id=guest.job_id,
            )
    _last_guest.set(None)


def _begins_always(connection: object) -> bool:
    """Tell whether a transaction says nothing: with `autocommit=False` there is always one."""
    return getattr(connection, "autocommit", None) is False
