"""Opening a connection the one right way.

WAL with `synchronous=FULL`: a commit that returned survives a power cut. Automatic checkpoints are
off on every connection, because builds before 3.51.3 can corrupt the file when two connections
checkpoint at once; `checkpoint.py` does it under a file lock. The busy timeout is ours, because
SQLite's own backs off to 100 ms.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from trellis.engines.sqlite.errors import is_busy, translate
from trellis.engines.sqlite.transaction import FRAGMENTS, STATEMENTS
from trellis.errors import DatabaseMissing, EngineError, ReadOnlyDatabase

BUSY_SECONDS: Final = 5.0
_SETTINGS: Final = (
    "set_journal_mode",
    "set_synchronous",
    "set_wal_autocheckpoint",
    "set_busy_timeout",
    "set_cache_size",
    "set_temp_store",
)
T = TypeVar("T")


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file; make it, readable by its owner only, if it is missing and may be made."""
    if not _exists(path):
        if not create:
            raise DatabaseMissing(
                f"There is no database at {path}. Check the URL, or run "
                f"`trellis migrate --url sqlite:///{path}` to create it."
            )
        _make(path)
    try:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        for name in _SETTINGS:
            patiently(partial(connection.execute, STATEMENTS[name])).fetchall()
    except sqlite3.Error as error:
        raise translate(error, path) from error
    return connection


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise ReadOnlyDatabase(
            f"{path} cannot be reached ({error.strerror}). Check that this user may open its "
            "folder and write there."
        ) from error


def _make(path: Path) -> None:
    try:
        # Only a file that was not there before may be closed past SQLite; see `inspection.py`.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise ReadOnlyDatabase(
            f"{path} cannot be created ({error.strerror}). Check that its folder exists and that "
            "this user may write there."
        ) from error


def patiently(action: Callable[[], T], seconds: float = BUSY_SECONDS) -> T:
    """Run the action, again and again while the database is locked by somebody else."""
    until = time.monotonic() + seconds
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
        # 0.2 to 1 ms: short enough that a waiting writer is next, long enough not to burn a core.
        time.sleep(random.uniform(0.0002, 0.001))  # noqa: S311 - spreads retries, guards nothing


def read_setting(connection: sqlite3.Connection, name: str) -> object:
    """Return what SQLite says a pragma is now."""
    question = FRAGMENTS["setting"].format(name=name)
    row = connection.execute(question).fetchone()
    if row is None:
        raise EngineError(f"SQLite does not answer `{question}`.")
    value: object = row[0]
    return value
