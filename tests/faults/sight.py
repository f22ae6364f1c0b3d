"""What the harness can see while a campaign runs: the database, and the logs of the handlers.

Read only, with plain SQL and plain files: waiting for these to become true is how the harness is
synchronised, so that nothing rests on a sleep being long enough.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Final

#: The byte of the shared-memory file that a writer in WAL mode has locked.
_WRITE_LOCK: Final = 120


class Database:
    """A look at the file under test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Look no more."""
        if self._connection is not None:
            self._connection.close()

    def _ask(self, query: str, *values: object) -> list[tuple[int, ...]]:
        if self._connection is None:
            if not self._path.exists():
                return []
            address = f"file:{self._path}?mode=ro"
            self._connection = sqlite3.connect(address, uri=True, timeout=10)
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # its first process is still creating it
                return []
            raise

    def sessions(self) -> dict[int, int]:
        """Return the sessions that have not ended, with their processes."""
        rows = self._ask("select id, pid from trellis_session where ended_at is null")
        return {session: pid for session, pid in rows}  # noqa: C416 - says what they are

    def is_over(self, session: int) -> bool:
        """Tell whether a session was ended and nothing is held in its name any more."""
        return not self._ask(
            "select 1 from trellis_session s where s.id = ? and (s.ended_at is null or exists "
            "(select 1 from trellis_queue q where q.session = s.id))",
            session,
        )

    def refusals(self, session: int) -> int:
        """Count the late results of a session that were refused."""
        ((number,),) = self._ask(
            "select count(*) from trellis_event "
            "where kind = 'staleCompletionIgnored' and session = ?",
            session,
        )
        return number

    def jobs(self) -> int:
        """Count the jobs."""
        return (self._ask("select max(seq) from trellis_job") or [(0,)])[0][0] or 0

    def ready(self) -> int:
        """Count the jobs that wait for a worker."""
        rows = self._ask("select count(*) from trellis_queue where park = 'ready'")
        return rows[0][0] if rows else 0

    def unfinished(self) -> int:
        """Count the jobs that wait or run, and the slots that are taken."""
        rows = self._ask(
            "select (select count(*) from trellis_queue) + (select count(*) from trellis_key_slot)"
        )
        return rows[0][0] if rows else 0


def writer_of(path: Path) -> int | None:
    """Return the process that is in the middle of writing to a database; None if nobody is.

    While that process stands still, so does everybody else who wants to write.
    """
    shared = path.with_name(f"{path.name}-shm")
    inode = shared.stat().st_ino if shared.exists() else None
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        _, *words = line.split()
        if len(words) == 7 and words[0] == "POSIX" and words[2] == "WRITE":
            *_, pid, place, first, last = words
            is_ours = place.rpartition(":")[2] == str(inode)
            if is_ours and int(first) <= _WRITE_LOCK <= int(last):
                return int(pid)
    return None


class Effects:
    """The handlers in flight, from the logs they write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[int, int] = defaultdict(int)
        self._open: dict[int, dict[int, str]] = defaultdict(dict)

    def in_flight(self, pid: int) -> list[str]:
        """Return the kinds of the handlers that run in a process now."""
        try:
            with open(f"{self._folder}/{pid}.jsonl", "rb") as file:  # noqa: PTH123 - asked very often
                file.seek(self._read[pid])
                fresh = file.read()
        except FileNotFoundError:
            return []
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read[pid] += len(whole)
        for line in whole.splitlines():
            self._note(pid, json.loads(line))
        return list(self._open[pid].values())

    def _note(self, pid: int, line: dict[str, object]) -> None:
        number = int(str(line["run"]))
        if line["event"] == "begin":
            self._open[pid][number] = str(line["kind"])
        else:
            self._open[pid].pop(number, None)
