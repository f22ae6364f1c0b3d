"""Jobs created inside the caller's own transaction, and what must wait until it has ended.

Such a job is stored by the caller's commit. Until then it is visible only to the caller, so waiting
for it would never end; on an engine with one writer nothing else can be written either. Both are
refused at once, and only for the task or thread that has the transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from trellis.core.job import JobId, NewJob
from trellis.engines.port import Engine
from trellis.engines.values import CreateResult
from trellis.errors import JobNotFound, TransactionOpen
from trellis.portal import waiting_caller


class _Created(NamedTuple):
    """The last job that this task or thread has created in the caller's transaction."""

    connection: object
    creator: object
    job_id: JobId
    #: Whether the connection always has an open transaction; only its own thread may ask it.
    is_always_open: bool


#: libpq's states of a connection without a transaction.
_IDLE, _UNKNOWN = 0, 4
_last_created: Final[ContextVar[_Created | None]] = ContextVar(
    "trellis_created_in_transaction", default=None
)


def is_open(connection: object) -> bool:
    """Return whether the caller's connection is known to have an open transaction."""
    try:
        return _is_open(actual_connection(connection))
    except Exception:  # noqa: BLE001 - the driver's own, for a closed connection
        return False


def _is_open(connection: Any) -> bool:  # noqa: ANN401 - any driver
    if hasattr(connection, "in_atomic_block"):  # Django, which may also run without autocommit
        return connection.in_atomic_block or _is_open(connection.connection)
    if hasattr(connection, "is_in_transaction"):  # asyncpg
        return bool(connection.is_in_transaction())
    if hasattr(connection, "in_transaction"):  # sqlite3; a method of SQLAlchemy
        state = connection.in_transaction
        return bool(state() and _is_open_in_sqlite(connection) if callable(state) else state)
    status = getattr(getattr(connection, "info", None), "transaction_status", _IDLE)  # psycopg
    return status not in (_IDLE, _UNKNOWN)


def _is_open_in_sqlite(connection: Any) -> bool:  # noqa: ANN401 - of SQLAlchemy
    """Return False if SQLAlchemy has begun a transaction of SQLite, but written nothing yet."""
    if hasattr(connection, "run_sync"):
        return True  # awaited: its driver cannot be asked here
    if hasattr(connection, "get_bind"):
        connection = connection.connection()
    return connection.dialect.name != "sqlite" or bool(connection.connection.in_transaction)


def actual_connection(connection: Any) -> Any:  # noqa: ANN401 - any driver
    """Return the connection itself, where the caller gave a proxy for one per thread."""
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
        _last_created.set(
            _Created(connection, waiting_caller(), jobs[-1].id, _is_always_open(connection))
        )
    return results


async def refuse_while_open(engine: Engine, awaited: JobId | None = None) -> None:
    """Raise `TransactionOpen` while a transaction of this task or thread blocks the writer.

    Waiting for the very job of the transaction is refused by `not_committed`, which knows more.
    """
    created = _last_created.get()
    if created is None or created.creator != waiting_caller() or created.job_id == awaited:
        return
    if not engine.capabilities.one_writer:
        return
    if is_open(created.connection) and not created.is_always_open:
        (record,) = (await engine.load([created.job_id])).records
        if record is None:
            raise TransactionOpen(
                f"Your transaction with job {created.job_id} is still open, and nothing else can "
                "be written before it ends. Commit or roll back first, or create this job with "
                "tx=, too.",
                job_id=created.job_id,
            )
    _last_created.set(None)


def not_committed(job_id: str, connection: object) -> JobNotFound | TransactionOpen:
    """Return the error for a job of the caller's transaction that is not visible yet, or gone."""
    if is_open(connection):
        return TransactionOpen(
            f"Job {job_id} is in a transaction of yours that is still open; no worker can run it "
            "before you commit. Commit first, then wait.",
            job_id=job_id,
        )
    return JobNotFound(
        f"There is no job {job_id}: the transaction it was created in was rolled back.",
        job_id=job_id,
    )


def _is_always_open(connection: object) -> bool:
    """Return whether an open transaction means nothing: `autocommit=False` always has one."""
    return getattr(connection, "autocommit", None) is False
