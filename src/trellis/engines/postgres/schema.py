"""Bringing a database to this version's schema, one process at a time, while workers go on.

The version stands in `meta`. Migrations are numbered files, run forward only, each in the same
transaction as its number, under a lock that ends with the transaction: whoever comes second waits
and then finds nothing to do.
"""

from __future__ import annotations

from typing import Final

from trellis import failpoints
from trellis.engines.postgres.address import Address
from trellis.engines.postgres.link import Connection, Link
from trellis.engines.postgres.statements import migrations
from trellis.errors import NotATrellisDatabase, SchemaTooNew, SchemaTooOld

_GATE: Final = "select pg_advisory_xact_lock(hashtextextended('trellis/migrate/' || $1::text, 0))"


def latest_version(schema: str) -> int:
    """Return the schema version this code works with."""
    return migrations(schema)[-1][0]


async def migrate(link: Link, address: Address) -> tuple[int, int]:
    """Run the missing migrations; return the versions before and after."""
    latest = latest_version(address.schema)
    async with link.transaction() as connection:
        await connection.execute(_GATE, address.schema)
        before = await stored_version(connection, address)
        _refuse_newer(before, address)
        for number, script in migrations(address.schema):
            if number > before:
                failpoints.reach("postgres.migrate")
                await connection.execute(_complete(number, script, address.schema))
    return before, latest


async def missing(link: Link, address: Address) -> tuple[tuple[int, str], ...]:
    """Return the migrations that the database has not seen, as they would be run."""
    async with link.transaction() as connection:
        version = await stored_version(connection, address)
    _refuse_newer(version, address)
    return tuple(
        (number, _complete(number, script, address.schema))
        for number, script in migrations(address.schema)
        if number > version
    )


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
            f"{address.shown} has {what}, this Trellis needs version {latest}. Run "
            f"`trellis migrate --url {address.shown}`."
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
