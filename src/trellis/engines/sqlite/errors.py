"""SQLite's errors as errors of Trellis: what happened, whether it was stored, what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from trellis.errors import (
    DatabaseDamaged,
    DiskFull,
    EngineBusy,
    EngineError,
    EngineUnavailable,
    NotATrellisDatabase,
    OutcomeUnknown,
    PayloadInvalid,
    ReadOnlyDatabase,
    Unstorable,
)

_PRIMARY = 0xFF  # extended result codes keep the primary one in the low byte


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection holds the lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: sqlite3.Error, path: Path, *, committing: bool = False) -> EngineError:
    """Return the typed error for an error of SQLite."""
    code = _code(error)
    if is_busy(error):
        return EngineBusy(
            f"{path} was locked by another program for too long. Nothing was stored; try again. "
            "If it stays locked, look for a program that holds a transaction open."
        )
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(
            f"The disk that holds {path} is full. Nothing of this call was stored; "
            "free some space and try again."
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return ReadOnlyDatabase(
            f"{path} cannot be written. Give this user write permission on the file, on the -wal "
            "and -shm files beside it, and on their folder. To read it, this user needs read "
            "permission on all three while another program has the file open; while none has, "
            "copy it to a folder in which this user may write, and name the copy."
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return ReadOnlyDatabase(
            f"{path} cannot be opened. Check that its folder exists and that this user may "
            "write there."
        )
    if code == sqlite3.SQLITE_NOTADB:
        return NotATrellisDatabase(
            f"{path} is not a SQLite database. Check the URL; the file was left untouched."
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return DatabaseDamaged(
            f"{path} is damaged ({error}). Stop all workers, keep a copy of the file, and restore "
            "a backup or run `sqlite3 FILE .recover`."
        )
    if committing:
        return OutcomeUnknown(
            f"Writing {path} failed while committing ({error}); the call may or may not have "
            "been stored. Repeating it with the same ids is safe."
        )
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL):
        return EngineUnavailable(
            f"Reading or writing {path} failed ({error}). Nothing of this call was stored."
        )
    return EngineError(f"SQLite refused a statement on {path}: {error}.")


def typed(error: Exception, path: Path) -> Exception:
    """Return what a failed call raises: an error of Trellis for those of SQLite and Python."""
    if _is_about_the_values(error):
        refusal = Unstorable(f"{path} cannot store this: {error}. Nothing of this call was stored.")
        refusal.__cause__ = error
        return refusal
    if isinstance(error, sqlite3.Error):
        translated = translate(error, path)
        translated.__cause__ = error
        return translated
    if isinstance(error, UnicodeEncodeError):
        return PayloadInvalid(
            "A text to be stored contains a lone surrogate, which is not valid Unicode. "
            "Nothing of this call was stored; remove or replace it."
        )
    return error


def _is_about_the_values(error: Exception) -> bool:
    """Return whether the same values would be refused again: too long, too large, a constraint."""
    if isinstance(error, sqlite3.IntegrityError):
        # A trigger is about the whole file: its jobs were moved to another store.
        return error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_TRIGGER
    return isinstance(error, sqlite3.DataError | OverflowError)


def _code(error: sqlite3.Error) -> int:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Raised by the sqlite3 module itself, e.g. "file is not a database" on some builds.
        return sqlite3.SQLITE_NOTADB if "not a database" in str(error) else sqlite3.SQLITE_ERROR
    return code & _PRIMARY
