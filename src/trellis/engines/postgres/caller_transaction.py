"""`create` inside the caller's own transaction, on the caller's own connection.

The caller's commit decides, so nothing here commits, and whatever fails is undone to the point
where we came in. Numbers of lanes and policies are made beforehand on a short connection of ours:
they do not depend on the caller's commit, and nobody else waits for it. The code is written once,
for drivers that are awaited; a plain driver never makes it wait, so it runs through in one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from trellis.core.job import NewJob
from trellis.engines.postgres import creating
from trellis.engines.postgres.connection import PLAIN, Link
from trellis.engines.postgres.drivers import CallerStatements, GuestWire, wire_for
from trellis.engines.postgres.registry import Books
from trellis.engines.postgres.statements import statements
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.postgres.url import Address
from trellis.engines.sql.transaction import run_through
from trellis.engines.values import CreateResult
from trellis.errors import (
    AccessDenied,
    EngineBusy,
    EngineError,
    TransactionRefused,
    TrellisError,
)

T = TypeVar("T")
#: Which database an address led to, and the numbers known of a database.
_instances: Final[dict[Address, str]] = {}
_books: Final[dict[str, Books]] = {}
_NO_TRANSACTION: Final = "25P01"
_OLD_SNAPSHOTS: Final = frozenset({"repeatable read", "serializable"})


class Apart:
    """A connection of our own for a moment, whatever else is open."""

    def __init__(self, address: Address) -> None:
        self._link = Link(address, PLAIN)

    async def __aenter__(self) -> Link:
        return self._link

    async def __aexit__(self, *_: object) -> None:
        await self._link.close()


def create_within(
    address: Address, connection: object, jobs: Sequence[NewJob]
) -> list[CreateResult] | Awaitable[list[CreateResult]]:
    """Admit and store new jobs in the caller's transaction."""
    wire = wire_for(connection)
    if wire is None:
        raise TransactionRefused(
            f"{type(connection).__module__}.{type(connection).__name__} is no connection Trellis "
            "knows. Pass one of asyncpg, psycopg 3, SQLAlchemy 2 or Django to the database "
            f"{address.shown}."
        )
    jobs = creating.check(jobs)
    joining = _join(address, wire, jobs)
    return joining if wire.is_async else run_through(joining)


async def _join(address: Address, wire: GuestWire, jobs: Sequence[NewJob]) -> list[CreateResult]:
    sql, on_caller = statements(address.schema), CallerStatements(wire, address.schema)
    await _save(address, wire)
    try:
        books = await _books_for(address, wire, jobs)
        tx = Transaction(on_caller, books)
        await _check_isolation(on_caller, jobs)
        results = await creating.create(tx, jobs, guest=True)
        await on_caller.rows("notify", f"{address.schema}_ready", "")
    except BaseException as error:
        await _undo(wire, sql)
        raise _in_words(error, address, wire) from error
    await wire.run(sql["caller_release"])
    return results


async def _save(address: Address, wire: GuestWire) -> None:
    """Mark the point to come back to; only an open transaction has one."""
    try:
        await wire.run(statements(address.schema)["caller_savepoint"])
    except Exception as error:
        if wire.sqlstate(error) == _NO_TRANSACTION:
            raise TransactionRefused(
                "This connection has no open transaction, so the job would be stored at once, "
                "whatever becomes of your rows. Begin one first."
            ) from error
        if wire.has_failed(error):
            raise TransactionRefused(
                "Your transaction has failed before, so nothing can join it. Roll it back first."
            ) from error
        raise _in_words(error, address, wire) from error


async def _undo(wire: GuestWire, sql: dict[str, str]) -> None:
    """Go back to the point where we came in; what cannot even do that is beyond use."""
    with suppress(Exception):
        await wire.run(sql["caller_undo"])
        await wire.run(sql["caller_release"])


async def _check_isolation(wire: CallerStatements, jobs: Sequence[NewJob]) -> None:
    """Refuse to decide by an old snapshot what only the present can tell."""
    if not any(creating.has_gates(new) for new in jobs):
        return
    ((level,),) = await wire.rows("caller_isolation")
    if level in _OLD_SNAPSHOTS:
        raise TransactionRefused(
            f"Your transaction is {level}, so it does not see the jobs that others have created "
            "since it began, and a dedupe key, idempotency key or bounded key could not hold. Use "
            "READ COMMITTED, or create this job without such a key."
        )


async def _books_for(address: Address, wire: GuestWire, jobs: Sequence[NewJob]) -> Books:
    """Return the numbers of the database the caller is connected to, which must be the engine's."""
    there = await _instance(address, wire)
    if there is None or there != _instances.get(address):
        _instances[address] = await _apart(wire, _own_instance, address)
    if there != _instances[address]:
        raise TransactionRefused(
            f"This connection leads to another database than {address.shown} (schema "
            f"{address.schema}), where the jobs are kept: they cannot be committed together. "
            "Connect to that one, or point the service's URL at yours."
        )
    books = _books.setdefault(there, Books())
    if not books.knows(jobs):
        await _apart(wire, _enter, address, books, jobs)
    return books


async def _instance(address: Address, wire: GuestWire) -> str | None:
    """Return what names the caller's database; None if it has no tables of ours."""
    on_caller = CallerStatements(wire, address.schema)
    ((there,),) = await on_caller.rows("schema_table", f"{address.schema}.meta")
    if not there:
        return None
    rows = await on_caller.rows("instance")
    return str(rows[0][0]) if rows else None


async def _apart(wire: GuestWire, action: Any, *values: object) -> Any:  # noqa: ANN401
    """Do something on a connection of ours: here, or in a thread of its own for plain drivers.

    Once per database and new type, so that thread is not kept.
    """
    if wire.is_async:
        return await action(*values)
    with ThreadPoolExecutor(1, "trellis-guest") as pool:
        return pool.submit(asyncio.run, action(*values)).result()


async def _own_instance(address: Address) -> str:
    async with Apart(address) as link:
        return str(await link.value("instance"))


async def _enter(address: Address, books: Books, jobs: Sequence[NewJob]) -> None:
    async with Apart(address) as link:
        await books.enter(link, jobs)


def _in_words(error: BaseException, address: Address, wire: GuestWire) -> BaseException:
    if isinstance(error, TrellisError) or not isinstance(error, Exception):
        return error
    where = address.shown
    match wire.sqlstate(error):
        case "42501":
            return AccessDenied(
                f"The user of your connection may not create jobs at {where}: {error}. Nothing of "
                "it is left in your transaction. See the roles in docs/operations/postgresql.md."
            )
        case "40001" | "40P01" | "55P03" | "57014":
            return EngineBusy(
                f"The job could not be created in your transaction at {where}: {error}. Roll back "
                "and repeat the transaction."
            )
        case _:
            return EngineError(
                f"The job could not be created in your transaction at {where}: {error}. Nothing "
                "of it is left in the transaction."
            )
