"""One SQLite file in the folder of the campaign."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from tests.harness.faults.checker.histories import ServerFault
from tests.harness.faults.export import write_truth
from tests.harness.faults.stores.looking import Looking, Rows, named

#: The byte of the shared-memory file that a writer in WAL mode has locked.
_WRITE_LOCK: Final = 120
_PREFIX: Final = "trellis_"


class SQLiteStore(Looking):
    """A file that its first process creates."""

    server = None
    deeds = ()

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "jobs.db"
        self._connection: sqlite3.Connection | None = None
        self.url = f"sqlite:///{self._path}"

    def close(self) -> None:
        """Look no more."""
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10)

    def _ask(self, query: str, *numbers: int) -> Rows:
        if self._connection is None:
            if not self._path.exists():
                return []
            self._connection = self._connect()
        try:
            return self._connection.execute(named(query, _PREFIX, *numbers)).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # its first process is still creating it
                return []
            raise

    def writer(self) -> int | None:
        """Return the process that is in the middle of writing: all others must wait for it."""
        shared = self._path.with_name(f"{self._path.name}-shm")
        inode = shared.stat().st_ino if shared.exists() else None
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            _, *words = line.split()
            if len(words) == 7 and words[0] == "POSIX" and words[2] == "WRITE":
                *_, pid, place, first, last = words
                is_ours = place.rpartition(":")[2] == str(inode)
                if is_ours and int(first) <= _WRITE_LOCK <= int(last):
                    return int(pid)
        return None

    def way(self) -> None:
        """Return none: a file is there or not."""

    def take_away(self, kind: ServerFault) -> None:
        """Refuse: there is no server."""
        raise ValueError(f"A file has no server for {kind}.")

    def bring_back(self) -> None:
        """Do nothing: nothing was taken away."""

    def export(self, target: Path) -> None:
        """Write the system truth, if the file is sound."""
        connection = self._connect()
        connection.row_factory = sqlite3.Row
        try:
            (sound,) = connection.execute("pragma integrity_check").fetchone()
            if sound != "ok":
                raise SystemExit(f"the database is damaged: {sound}")

            def ask(query: str) -> list[Any]:
                return connection.execute(named(query, _PREFIX)).fetchall()

            write_truth(ask, target)
        finally:
            connection.close()
