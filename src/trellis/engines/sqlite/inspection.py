"""Looking at a file before touching it: what is not ours is refused as it is.

Opening a file the way the engine does switches it to WAL mode, so everything that can be refused is
refused before that, from the first bytes and through a read-only connection.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from trellis.engines.sqlite import schema
from trellis.engines.sqlite.faults import translate
from trellis.errors import NotATrellisDatabase, SchemaTooOld

_MAGIC: Final = b"SQLite format 3\0"
#: The byte of the header that says whether the file is in WAL mode, and the word for "it is not".
_WRITE_VERSION: Final = 18
_ROLLBACK_JOURNAL: Final = 1


def refuse_foreign(path: Path, *, create: bool) -> None:
    """Refuse an existing file that is no database, or that this caller may not make ours."""
    try:
        with path.open("rb") as file:
            header = file.read(_WRITE_VERSION + 1)
    except OSError:
        return  # missing or unreadable: opening it says so better
    if header and not header.startswith(_MAGIC):
        raise NotATrellisDatabase(
            f"{path} is not a SQLite database. Check the URL; the file was left untouched."
        )
    if header and header[_WRITE_VERSION] != _ROLLBACK_JOURNAL:
        return  # in WAL mode already: looking further changes nothing
    if header:
        _refuse_lookalike(path)
    if not create:
        raise SchemaTooOld(
            f"{path} has no Trellis tables. Run `trellis migrate --url sqlite:///{path}` to add "
            "them, or check the URL; the file was left untouched."
        )


def _refuse_lookalike(path: Path) -> None:
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            schema.stored_version(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise translate(error, path) from error
