"""Looking at a file before touching it: what is not ours is refused as it is.

Opening a file the way the engine does switches it to WAL mode, so everything that can be refused is
refused before that, through a read-only connection. The file is never opened past SQLite: closing
such a descriptor would drop the locks of every connection this process has to the same file, and
whoever closes the database next would take its log away under them.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from trellis.engines.sqlite import schema
from trellis.engines.sqlite.connection import patiently
from trellis.engines.sqlite.errors import translate
from trellis.engines.sqlite.transaction import FRAGMENTS
from trellis.errors import NotATrellisDatabase, SchemaTooOld


def refuse_foreign(path: Path, *, create: bool) -> None:
    """Refuse an existing file that is no database, or that this caller may not make ours."""
    if not _is_there(path):
        return  # opening it says so better
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            look = partial(connection.execute, FRAGMENTS["setting"].format(name="journal_mode"))
            (mode,) = patiently(look).fetchone()
            if mode == "wal":
                return  # looking further changes nothing
            schema.stored_version(connection, path)
    except sqlite3.OperationalError:
        return  # unreadable: opening it says so better
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
    if not _is_there(path):
        return 0
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            return patiently(lambda: schema.stored_version(connection, path))
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
