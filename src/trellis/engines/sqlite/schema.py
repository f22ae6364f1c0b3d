"""The schema of a file: its version, the migrations that are missing, files that are refused.

The version is stored in `trellis_meta`. Migrations are numbered files, run forward only, each in
the same transaction as its number: a crash leaves the old version or the new one.

Opening a file the way the engine does switches it to WAL mode. So everything that can be refused is
refused before that, through a read-only connection. The file is never opened past SQLite: closing
such a descriptor would drop the locks of every connection this process has to the same file, and
the next connection that closes the database would remove its log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from trellis import failpoints
from trellis.engines.sql.rows import Row
from trellis.engines.sql.statements import load_migrations
from trellis.engines.sqlite.connection import patiently
from trellis.engines.sqlite.errors import translate
from trellis.engines.sqlite.transaction import FRAGMENTS, STATEMENTS, Connection
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


def migrate(
    connection: sqlite3.Connection, path: Path, record: Callable[[int], Row] | None = None
) -> int:
    """Run the missing migrations; return the version before.

    `record` makes the entry of the audit from the version before, where an operator asked for it.
    """
    try:
        before = stored_version(connection, path)
        _refuse_newer(before, path)
        if before < latest_version():
            patiently(lambda: connection.execute(STATEMENTS["begin"]))
            try:
                version = _run_missing(connection, path)
                if record is not None and version < latest_version():
                    connection.execute(STATEMENTS["audit_add"], record(version))
                failpoints.reach("sqlite.migrate.before-commit")
                connection.execute(STATEMENTS["commit"])
            finally:
                if connection.in_transaction:
                    connection.execute(STATEMENTS["rollback"])
    except sqlite3.Error as error:
        raise translate(error, path) from error
    return before


def missing(path: Path, version: int) -> tuple[tuple[int, str], ...]:
    """Return the migrations that a file of this version lacks, as they would be run."""
    _refuse_newer(version, path)
    return tuple(
        (number, f"{script.rstrip()}\n{STATEMENTS['schema_record'].replace('?', str(number))};\n")
        for number, script in load_migrations(_PACKAGE)
        if number > version
    )


def _run_missing(connection: sqlite3.Connection, path: Path) -> int:
    """Run what is missing; return the version before."""
    # Read again under the lock: another process may have migrated before the lock was granted.
    version = stored_version(connection, path)
    _refuse_newer(version, path)
    for number, script in load_migrations(_PACKAGE):
        if number > version:
            for statement in split(script):
                failpoints.reach("sqlite.migrate")
                connection.execute(statement)
            connection.execute(STATEMENTS["schema_record"], (number,))
    return version


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
            f"{path} has tables with the prefix trellis_ ({', '.join(sorted(tables)[:3])}) but no "
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


# -- files that are refused --------------------------------------------------------------------


def refuse_foreign(path: Path, *, create: bool) -> None:
    """Refuse an existing file that is no database, or has no Trellis tables and may get none."""
    if not _is_file(path):
        return  # opening it gives the better error
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            look = partial(connection.execute, FRAGMENTS["setting"].format(name="journal_mode"))
            (mode,) = patiently(look).fetchone()
            if mode == "wal":
                return  # opening it changes nothing
            stored_version(connection, path)
    except sqlite3.OperationalError:
        return  # unreadable: opening it gives the better error
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorname == "SQLITE_NOTADB":
            raise NotATrellisDatabase(
                f"{path} is not a SQLite database. Check the URL; the file was left untouched."
            ) from error
        raise translate(error, path) from error
    if not create:
        raise SchemaTooOld(
            f"{path} has no Trellis tables. Run `trellis migrate --url sqlite:///{path}` to add "
            "them, or check the URL; the file was left untouched."
        )


def peek_version(path: Path) -> int:
    """Return the schema version of a file, 0 for none, without changing anything."""
    refuse_foreign(path, create=True)
    if not _is_file(path):
        return 0
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            return patiently(lambda: stored_version(connection, path))
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
