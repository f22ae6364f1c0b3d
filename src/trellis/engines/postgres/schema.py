"""Bringing a database to this version's schema, one process at a time, while workers go on.

The version stands in `meta`. Migrations are numbered files, run forward only, all that are missing
in one transaction with their numbers, under a lock that ends with it: whoever comes second waits
and then finds nothing to do. Everybody waits behind an order that waits for a table: so none waits
for long, and what did not get its locks is undone and tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from trellis import failpoints
from trellis.engines.postgres.address import Address
from trellis.engines.postgres.link import Link
from trellis.engines.postgres.preparing import Connection
from trellis.engines.postgres.statements import migrations
from trellis.engines.urls import as_argument
from trellis.errors import EngineBusy, NotATrellisDatabase, SchemaTooNew, SchemaTooOld

Scripts = Sequence[tuple[int, str]]

_KEY: Final = "hashtextextended('trellis/migrate/{schema}', 0)"
_GATE: Final = f"select pg_advisory_xact_lock({_KEY})"
_TRY_GATE: Final = f"select pg_try_advisory_xact_lock({_KEY})"
#: For the transaction: how long claims may wait behind us, and no end to the work itself.
_LIMITS: Final = "set local lock_timeout = '1s'; set local statement_timeout = 0"
_WORK: Final = 24 * 3600.0
#: Seconds between two tries, and for all of them.
_PAUSE: Final = 1.0
_PATIENCE: Final = 60.0
_HOLDERS: Final = """
    select string_agg(distinct format('pid %s (%s, %s for %s s)', a.pid,
      coalesce(nullif(a.application_name, ''), 'no application_name'), a.state,
      extract(epoch from clock_timestamp() - a.xact_start)::int), ', ')
    from pg_locks l join pg_class c on c.oid = l.relation join pg_stat_activity a on a.pid = l.pid
    where c.relnamespace = (select oid from pg_namespace where nspname = $1)
      and l.database = (select oid from pg_database where datname = current_database())
      and a.xact_start < clock_timestamp() - interval '1 second' and a.pid <> pg_backend_pid()
"""


def latest_version(schema: str) -> int:
    """Return the schema version this code works with."""
    return migrations(schema)[-1][0]


async def migrate(link: Link, address: Address) -> tuple[int, int]:
    """Run the missing migrations; return the versions before and after."""
    return await bring_to(link, address, migrations(address.schema))


async def bring_to(
    link: Link, address: Address, scripts: Scripts, patience: float = _PATIENCE
) -> tuple[int, int]:
    """Run those of these migrations that are missing, as soon as nobody is in the way."""
    latest = scripts[-1][0]
    give_up_at = time.monotonic() + patience
    while True:
        before = await _look(link, address)
        if before >= latest:  # without any lock: most calls find nothing to do
            return before, latest
        try:
            if await _run(link, address, scripts):
                return before, latest
        except EngineBusy as error:
            if time.monotonic() > give_up_at:
                raise await _in_the_way(link, address, error) from error
            await asyncio.sleep(_PAUSE)
        await asyncio.sleep(_PAUSE / 10)


async def _look(link: Link, address: Address) -> int:
    async with link.transaction() as connection:
        version = await stored_version(connection, address)
    _refuse_newer(version, address)
    return version


async def _run(link: Link, address: Address, scripts: Scripts) -> bool:
    """Run what is missing; False if somebody else is at it or was first."""
    schema = address.schema
    async with link.transaction() as connection:
        if not await connection.fetchval(_TRY_GATE.format(schema=schema)):
            return False
        before = await stored_version(connection, address)
        await connection.execute(_LIMITS)
        for number, script in scripts:
            if number > before:
                failpoints.reach("postgres.migrate")
                await connection.execute(_complete(number, script, schema), timeout=_WORK)
        return before < scripts[-1][0]


async def _in_the_way(link: Link, address: Address, error: EngineBusy) -> EngineBusy:
    async with link.transaction() as connection:
        holders = await connection.fetchval(_HOLDERS, address.schema)
    if holders is None:
        return error
    return EngineBusy(
        f"The tables at {address.shown} could not be changed, because long transactions use them: "
        f"{holders}. Nothing was changed. Let them end, or end them with "
        "pg_terminate_backend(pid), and run `trellis migrate` again."
    )


async def missing(link: Link, address: Address) -> tuple[tuple[int, str], ...]:
    """Return the migrations that the database has not seen, as they would be run."""
    version = await _look(link, address)
    found = [
        (number, _complete(number, script, address.schema))
        for number, script in migrations(address.schema)
        if number > version
    ]
    if found:
        number, script = found[0]
        gate = f"{_GATE.format(schema=address.schema)};\n{_LIMITS};\n"
        found[0] = number, f"{gate}{script}"
    return tuple(found)


def _complete(number: int, script: str, schema: str) -> str:
    """Return a migration with what goes before the first and after each."""
    head = f"create schema if not exists {schema};\n" if number == 1 else ""
    # Numbers and the checked schema name are all that is put in.
    tail = (
        f"insert into {schema}.meta (name, value) values ('schema', '{number}') "  # noqa: S608
        "on conflict (name) do update set value = excluded.value;\n"
    )
    return f"{head}{script.rstrip()}\n{tail}"


async def check_version(connection: Connection, address: Address) -> None:
    """Refuse a database whose schema is not this version's."""
    version = await stored_version(connection, address)
    _refuse_newer(version, address)
    latest = latest_version(address.schema)
    if version < latest:
        what = "no Trellis tables" if version == 0 else f"schema version {version}"
        raise SchemaTooOld(
            f"{address.shown} has {what}, this Trellis needs version {latest}. Run: "
            f"trellis migrate --url {as_argument(address.url)}"
        )


async def stored_version(connection: Connection, address: Address) -> int:
    """Return the database's schema version; 0 when it has no Trellis tables."""
    table = f"{address.schema}.meta"
    if await connection.fetchval("select to_regclass($1)", table) is None:
        others = await connection.fetchval(
            "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname = $1 and c.relkind = 'r'",
            address.schema,
        )
        if others:
            raise NotATrellisDatabase(
                f"{address.shown} has a schema {address.schema!r} that is not ours. Use another "
                "name: ?schema=..."
            )
        return 0
    # The checked schema name is all that is put in.
    query = f"select value from {table} where name = 'schema'"  # noqa: S608
    found = await connection.fetchval(query)
    return int(found) if found is not None else 0


def _refuse_newer(version: int, address: Address) -> None:
    latest = latest_version(address.schema)
    if version > latest:
        raise SchemaTooNew(
            f"{address.shown} has schema version {version}; this Trellis knows versions up to "
            f"{latest}. Upgrade trellis-jobs in this program."
        )
