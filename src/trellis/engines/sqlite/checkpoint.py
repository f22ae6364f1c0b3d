"""Moving the write-ahead log into the database, by one process at a time.

SQLite before 3.51.3 can corrupt the file when two connections checkpoint at the same moment, so no
connection does it by itself; the writer does, while it holds an OS lock on a file beside the
database. Whoever does not get the lock leaves it to the one who has it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from trellis.engines.sqlite.transaction import STATEMENTS

#: The first release in which two connections may checkpoint at the same moment.
SAFE_RELEASE: Final = (3, 51, 3)
_EVERY_CHANGES: Final = 20_000
_EVERY_SECONDS: Final = 1.0


class Checkpointer:
    """Checkpoints when enough was written, or some time after anything was."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock_file = os.open(f"{path}-trellis-lock", os.O_CREAT | os.O_RDWR, 0o600)
        self._seen_changes = connection.total_changes
        self._last = time.monotonic()

    def after_commit(self) -> None:
        """Checkpoint if much was written since the last time."""
        if self._connection.total_changes - self._seen_changes >= _EVERY_CHANGES:
            self.run()

    def when_idle(self) -> None:
        """Checkpoint if anything was written and some time has passed."""
        changed = self._connection.total_changes != self._seen_changes
        if changed and time.monotonic() - self._last >= _EVERY_SECONDS:
            self.run()

    def run(self) -> bool:
        """Checkpoint now, unless another process is doing it."""
        self._seen_changes = self._connection.total_changes
        self._last = time.monotonic()
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Another process has it, or the file system knows no locks; the log just stays longer.
            return False
        try:
            self._connection.execute(STATEMENTS["checkpoint"]).fetchall()
        except sqlite3.Error:
            # Busy, full or worse: the log stays, nothing is lost, and the next one tries again.
            return False
        finally:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Let go of the lock file; the file itself stays for the other processes."""
        os.close(self._lock_file)
