"""Bringing a file to this version's schema, one process at a time.

The version stands in `trellis_meta`. Migrations are numbered files, run forward only, each in the
same transaction as its number: a crash leaves the old version or the new one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from trellis import failpoints
from trellis.engines.sql.statements import load_migrations
from trellis.engines.sqlite.connection import patiently
from trellis.engines.sqlite.errors import translate
from trellis.engines.sqlite.transaction import STATEMENTS, Connection
from trellis.errors import NotATrellisDatabase, SchemaTooNew, SchemaTooOld

_PACKAGE = "trellis.engines.sqlite"


def latest_version() -> int:
    """Return the schema version this code works with."""
    return load_migrations(_PACKAGE)[-1][0]


def check_version(connection: Connection, path: Path) -> None:
    """Refuse a file whose schema is not this version's."""
    version = stored_version(connection, path)
    _refuse_newer(version, path)
    if version < latest_version():
        raise SchemaTooOld(
            f"{path} has schema version {version}, this Trellis needs {latest_version()}. "
            f"Run `trellis migrate --url sqlite:///{path}`."
        )


def migrate(connection: sqlite3.Connection, path: Path) -> int:
    """Run the missing migrations; return the version before."""
    try:
        before = stored_version(connection, path)
        _refuse_newer(before, path)
        if before < latest_version():
            patiently(lambda: connection.execute(STATEMENTS["begin"]))
            try:
                _run_missing(connection, path)
                failpoints.reach("sqlite.migrate.before-commit")
                connection.execute(STATEMENTS["commit"])
            finally:
                if connection.in_transaction:
                    connection.execute(STATEMENTS["rollback"])
    except sqlite3.Error as error:
        raise translate(error, path) from error
    return before


def missing(path: Path, version: int) -> tuple[tuple[int, str], ...]:
    """Return the migrations that a file of this version has not seen, as they would be run."""
    _refuse_newer(version, path)
    return tuple(
        (number, f"{script.rstrip()}\n{STATEMENTS['schema_record'].replace('?', str(number))};\n")
        for number, script in load_migrations(_PACKAGE)
        if number > version
    )


def _run_missing(connection: sqlite3.Connection, path: Path) -> None:
    # Read again under the lock: another process may have migrated while we waited for it.
    version = stored_version(connection, path)
    _refuse_newer(version, path)
    for number, script in load_migrations(_PACKAGE):
        if number > version:
            for statement in split(script):
                failpoints.reach("sqlite.migrate")
                connection.execute(statement)
            connection.execute(STATEMENTS["schema_record"], (number,))


def split(script: str) -> Iterator[str]:
    """Yield the statements of a script."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def stored_version(connection: Connection, path: Path) -> int:
    """Return the file's schema version; 0 when it has no Trellis tables."""
    tables = {name for (name,) in connection.execute(STATEMENTS["schema_tables"])}
    if not tables:
        return 0
    if "trellis_meta" not in tables:
        raise NotATrellisDatabase(
            f"{path} has tables named like ours ({', '.join(sorted(tables)[:3])}) but no "
            "trellis_meta. Use another file."
        )
    row = connection.execute(STATEMENTS["schema_version"]).fetchone()
    return int(row[0]) if row else 0


def _refuse_newer(version: int, path: Path) -> None:
    if version > latest_version():
        raise SchemaTooNew(
            f"{path} has schema version {version}; this Trellis knows versions up to "
            f"{latest_version()}. Upgrade trellis-jobs in this program."
        )
