"""`create` inside the caller's own transaction, on the caller's own connection.

The caller's commit decides, so nothing here commits. After a failure, everything since the
savepoint is undone. Numbers of lanes and policies are made beforehand on a separate short
connection: they do not depend on the caller's commit, and no other process waits for it. The code
is written once, for drivers that are awaited; a synchronous one never makes it wait
(`run_through`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from trellis.core.admission import check_new_job
from trellis.core.job import NewJob
from trellis.engines.postgres import gates
from trellis.engines.postgres.connection import PLAIN, ServerConnection
from trellis.engines.postgres.drivers import CallerDriver, CallerStatements, driver_for
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.statements import statements
from trellis.engines.postgres.storage import UnknownNumbers
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.postgres.url import Address
from trellis.engines.sql.caller_transaction import failed_transaction, no_transaction
from trellis.engines.sql.create import Withdrawn
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
_registries: Final[dict[str, Registry]] = {}
_NO_TRANSACTION: Final = "25P01"
_OLD_SNAPSHOTS: Final = frozenset({"repeatable read", "serializable"})


class Apart:
    """A separate connection of the engine, opened for a moment."""

    def __init__(self, address: Address) -> None:
        self._link = ServerConnection(address, PLAIN)

    async def __aenter__(self) -> ServerConnection:
        return self._link

    async def __aexit__(self, *_: object) -> None:
        await self._link.close()


def create_within(
    address: Address, connection: object, jobs: Sequence[NewJob]
) -> list[CreateResult] | Awaitable[list[CreateResult]]:
    """Admit and store new jobs in the caller's transaction."""
    driver = driver_for(connection)
    if driver is None:
        raise TransactionRefused(
            f"{type(connection).__module__}.{type(connection).__name__} is not a connection "
            "that Trellis supports. Pass one of asyncpg, psycopg 3, SQLAlchemy 2 or Django to the "
            f"database {address.shown}."
        )
    jobs = [check_new_job(new) for new in jobs]
    joining = _join(address, driver, jobs)
    return joining if driver.is_async else run_through(joining)


async def _join(
    address: Address, driver: CallerDriver, jobs: Sequence[NewJob]
) -> list[CreateResult]:
    sql, on_caller = statements(address.schema), CallerStatements(driver, address.schema)
    await _save(address, driver)
    try:
        registry = await _registry_for(address, driver, jobs)
        tx = Transaction(on_caller, registry, is_callers=True)
        await _check_isolation(on_caller, jobs)
        await _check_prerequisites(on_caller, jobs)
        results = await _create(address, driver, tx, jobs)
        await on_caller.rows("notify", f"{address.schema}_ready", "")
    except Withdrawn as refused:
        await _undo(driver, sql)
        return refused.results
    except BaseException as error:
        await _undo(driver, sql)
        raise _explained(error, address, driver) from error
    await driver.run(sql["caller_release"])
    return results


async def _create(
    address: Address, driver: CallerDriver, tx: Transaction, jobs: Sequence[NewJob]
) -> list[CreateResult]:
    """Create the jobs; a job that they replace may have hooks of a type that is new."""
    try:
        return await gates.create_jobs(tx, jobs)
    except UnknownNumbers as unknown:
        await driver.run(statements(address.schema)["caller_undo"])
        await _apart(driver, _enter_numbers, address, tx.registry, unknown.jobs)
    return await gates.create_jobs(tx, jobs)


async def _save(address: Address, driver: CallerDriver) -> None:
    """Set a savepoint, which only an open transaction can have."""
    try:
        await driver.run(statements(address.schema)["caller_savepoint"])
    except Exception as error:
        if driver.sqlstate(error) == _NO_TRANSACTION:
            raise no_transaction("Begin one first.") from error
        if driver.has_failed(error):
            raise failed_transaction("Roll it back first.") from error
        raise _explained(error, address, driver) from error


async def _undo(driver: CallerDriver, sql: dict[str, str]) -> None:
    """Return to the savepoint; a connection on which that fails cannot be used any more."""
    with suppress(Exception):
        await driver.run(sql["caller_undo"])
        await driver.run(sql["caller_release"])


async def _check_isolation(driver: CallerStatements, jobs: Sequence[NewJob]) -> None:
    """Refuse to decide by an old snapshot: it lacks the jobs created since."""
    if not any(gates.has_gates(new) for new in jobs):
        return
    ((level,),) = await driver.rows("caller_isolation")
    if level in _OLD_SNAPSHOTS:
        raise TransactionRefused(
            f"Your transaction is {level}, so it does not see the jobs that other transactions "
            "have created since it began, and could break the promise of a dedupe key, idempotency "
            "key or bounded key. Nothing was stored. Use READ COMMITTED, or create this job "
            "without such a key."
        )


async def _check_prerequisites(driver: CallerStatements, jobs: Sequence[NewJob]) -> None:
    """Refuse to follow live jobs of other transactions: they could not end before the commit."""
    ids = sorted({each.id for new in jobs for each in new.after} - {new.id for new in jobs})
    foreign = await driver.rows("dependency_foreign", ids) if ids else ()
    if foreign:
        raise TransactionRefused(
            f"The job is to follow job {foreign[0][0]}, which has not ended and was not created in "
            "your transaction: its worker would have to wait for your commit. Nothing was stored. "
            "Create the job after your commit, or follow jobs of the same transaction."
        )


async def _registry_for(address: Address, driver: CallerDriver, jobs: Sequence[NewJob]) -> Registry:
    """Return the numbers of the database the caller is connected to, which must be the engine's."""
    there = await _instance(address, driver)
    if there is None or there != _instances.get(address):
        _instances[address] = await _apart(driver, _own_instance, address)
    if there != _instances[address]:
        raise TransactionRefused(
            f"This connection is to another database than {address.shown} (schema "
            f"{address.schema}), where the jobs are kept, so both cannot be committed together. "
            "Connect to that database, or point the service's URL at yours."
        )
    registry = _registries.setdefault(there, Registry())
    if not registry.knows(jobs):
        await _apart(driver, _enter, address, registry, jobs)
    return registry


async def _instance(address: Address, driver: CallerDriver) -> str | None:
    """Return the name of the caller's database; None if it has no tables of Trellis."""
    on_caller = CallerStatements(driver, address.schema)
    ((there,),) = await on_caller.rows("schema_table", f"{address.schema}.meta")
    if not there:
        return None
    rows = await on_caller.rows("instance")
    return str(rows[0][0]) if rows else None


async def _apart(driver: CallerDriver, action: Any, *values: object) -> Any:  # noqa: ANN401
    """Do something on a separate connection: here, or in a thread for synchronous drivers.

    This happens once per database and new type, so the thread is not kept.
    """
    if driver.is_async:
        return await action(*values)
    with ThreadPoolExecutor(1, "trellis-caller") as pool:
        return pool.submit(asyncio.run, action(*values)).result()


async def _own_instance(address: Address) -> str:
    async with Apart(address) as link:
        return str(await link.value("instance"))


async def _enter(address: Address, registry: Registry, jobs: Sequence[NewJob]) -> None:
    async with Apart(address) as link:
        await registry.enter(link, jobs)


async def _enter_numbers(address: Address, registry: Registry, jobs: Sequence[NewJob]) -> None:
    async with Apart(address) as link:
        await registry.enter_numbers(link, jobs)


def _explained(error: BaseException, address: Address, driver: CallerDriver) -> BaseException:
    if isinstance(error, TrellisError) or not isinstance(error, Exception):
        return error
    where = address.shown
    match driver.sqlstate(error):
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
