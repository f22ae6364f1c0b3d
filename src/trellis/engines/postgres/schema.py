"""The schema of a database: its version and the migrations that are missing.

The version is stored in `meta`. Migrations are numbered files, run forward only: all that are
missing in one transaction with their numbers, under a lock that ends with it. A second process
waits and then finds nothing to do. Workers go on during a migration. Every statement waits behind
one that waits for a table, so a migration waits only briefly for its locks; without them it is
rolled back and tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from trellis import failpoints
from trellis.engines.audit import By, migration_of
from trellis.engines.postgres.connection import Connection, ServerConnection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.statements import fragments, migrations
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.postgres.url import Address
from trellis.engines.redaction import as_argument
from trellis.engines.sql import audit
from trellis.errors import EngineBusy, NotATrellisDatabase, SchemaTooNew, SchemaTooOld

Scripts = Sequence[tuple[int, str]]

_WORK: Final = 24 * 3600.0
#: Seconds between two tries, and for all of them.
_PAUSE: Final = 1.0
_PATIENCE: Final = 60.0


def latest_version(schema: str) -> int:
    """Return the schema version this code works with."""
    return migrations(schema)[-1][0]


async def migrate(server: ServerConnection, address: Address, by: By | None = None) -> int:
    """Run the missing migrations; return the version before."""
    before, _ = await bring_to(server, address, migrations(address.schema), by=by)
    return before


async def bring_to(
    server: ServerConnection,
    address: Address,
    scripts: Scripts,
    patience: float = _PATIENCE,
    by: By | None = None,
) -> tuple[int, int]:
    """Run those of these migrations that are missing, as soon as their locks are free."""
    latest = scripts[-1][0]
    give_up_at = time.monotonic() + patience
    while True:
        before = await look(server, address)
        if before >= latest:  # without any lock: most calls find nothing to do
            return before, latest
        try:
            if await _run(server, address, scripts, by):
                return before, latest
        except EngineBusy as error:
            if time.monotonic() > give_up_at:
                raise await _in_the_way(server, address, error) from error
            await asyncio.sleep(_PAUSE)
        await asyncio.sleep(_PAUSE / 10)


async def look(server: ServerConnection, address: Address) -> int:
    """Return the database's schema version; refuse one that this code does not know."""
    async with server.transaction() as connection:
        version = await stored_version(connection, address)
    _refuse_newer(version, address)
    return version


async def _run(server: ServerConnection, address: Address, scripts: Scripts, by: By | None) -> bool:
    """Run what is missing; False if another process is doing it or was first."""
    schema = address.schema
    async with server.transaction() as connection:
        if not await connection.value("migrate_try", schema):
            return False
        before = await stored_version(connection, address)
        await connection.driver.execute(fragments(schema)["migrate_limits"])
        for number, script in scripts:
            if number > before:
                failpoints.reach("postgres.migrate")
                await connection.driver.execute(_complete(number, script, schema), timeout=_WORK)
        latest = scripts[-1][0]
        if by is not None and before < latest:
            tx = Transaction(connection, Registry())
            await tx.read_clock()
            await audit.record(tx, migration_of(before, latest), by)
        return before < latest


async def _in_the_way(server: ServerConnection, address: Address, error: EngineBusy) -> EngineBusy:
    async with server.transaction() as connection:
        holders = await connection.value("migrate_holders", address.schema)
    if holders is None:
        return error
    return EngineBusy(
        f"The tables at {address.shown} could not be changed, because long transactions use them: "
        f"{holders}. Nothing was changed. Let them end, or end them with "
        "pg_terminate_backend(pid), and run `trellis migrate` again."
    )


def missing(address: Address, version: int) -> tuple[tuple[int, str], ...]:
    """Return the migrations that a database of this version has not seen, as they would be run."""
    found = [
        (number, _complete(number, script, address.schema))
        for number, script in migrations(address.schema)
        if number > version
    ]
    if found:
        number, script = found[0]
        lock = _fragment("migrate_lock", address.schema)
        limits = _fragment("migrate_limits", address.schema)
        found[0] = number, f"{lock}\n{limits}\n{script}"
    return tuple(found)


def _complete(number: int, script: str, schema: str) -> str:
    """Return a migration with what goes before the first and after each."""
    head = f"{_fragment('migrate_schema', schema)}\n" if number == 1 else ""
    tail = _fragment("migrate_record", schema, number=number)
    return f"{head}{script.rstrip()}\n{tail}\n"


def _fragment(name: str, schema: str, **words: object) -> str:
    """Return a fragment; numbers and the checked schema name are all that is filled in."""
    return fragments(schema)[name].format(schema=schema, **words)


async def check_version(connection: Connection, address: Address) -> None:
    """Refuse a database whose schema is not this version's."""
    version = await stored_version(connection, address)
    _refuse_newer(version, address)
    latest = latest_version(address.schema)
    if version < latest:
        outdated = f"tables of version {version}, and this Trellis needs version {latest}"
        raise SchemaTooOld(
            f"{address.shown} has {outdated if version else 'no Trellis tables'}. Run: "
            f"trellis migrate --url {as_argument(address.url)}"
        )


async def stored_version(connection: Connection, address: Address) -> int:
    """Return the database's schema version; 0 when it has no Trellis tables."""
    table = f"{address.schema}.meta"
    if not await connection.value("schema_table", table):
        if not await connection.value("schema_others", address.schema):
            return 0
        # Another process may have committed the first migration between the two looks.
        if not await connection.value("schema_table", table):
            raise NotATrellisDatabase(
                f"{address.shown} has a schema {address.schema!r} without Trellis tables. Use "
                "another name: ?schema=..."
            )
    found = await connection.value("schema_version")
    return int(found) if found is not None else 0


def _refuse_newer(version: int, address: Address) -> None:
    latest = latest_version(address.schema)
    if version > latest:
        raise SchemaTooNew(
            f"{address.shown} has schema version {version}; this Trellis knows versions up to "
            f"{latest}. Upgrade trellis-jobs in this program."
        )
