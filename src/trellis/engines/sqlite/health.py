"""The health of a SQLite engine: the build, the settings in force, what is wrong."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trellis.engines.sqlite import schema
from trellis.engines.sqlite.connection import LOG_LIMIT, SAFE_RELEASE, read_setting
from trellis.engines.sqlite.export import read_seal
from trellis.engines.transfer import seal_warnings
from trellis.engines.values import Health

_MIB: Final = 1024 * 1024
#: Logs of this size are usual after a burst of jobs. A longer one means that the log could not be
#: moved into the file; a shorter one only if a reader is found that prevents it.
_SHORT_LOG: Final = 4 * _MIB
_LONG_LOG: Final = 2 * LOG_LIMIT
_LOCKS: Final = Path("/proc/locks")
_LOOKS: Final = 5
_LOOK_SECONDS: Final = 0.1
#: Bytes of the -shm file that SQLite locks: the writer, and readers of the log.
_WRITER: Final = 120
_READERS: Final = range(123, 128)
_SYNCHRONOUS: Final = {0: "off", 1: "normal", 2: "full", 3: "extra"}


def describe(connection: sqlite3.Connection, path: Path, *, wakes_others: bool) -> Health:
    """Read the settings back from the running connection; never assume them."""
    synchronous = _SYNCHRONOUS.get(int(str(read_setting(connection, "synchronous"))), "unknown")
    journal = str(read_setting(connection, "journal_mode"))
    facts: dict[str, Any] = {
        "path": str(path),
        "sqlite": sqlite3.sqlite_version,
        "schema": schema.stored_version(connection, path),
        "journal_mode": journal,
        "synchronous": synchronous,
        "wal_autocheckpoint": read_setting(connection, "wal_autocheckpoint"),
        "size_bytes": path.stat().st_size,
        "wal_bytes": _size(Path(f"{path}-wal")),
        "wake_up": "at once" if wakes_others else "poll",
    }
    seal = read_seal(connection)
    if seal is not None:
        facts["moved_to"] = seal.address
    return Health(
        "sqlite",
        _durability(journal, synchronous),
        facts,
        (*seal_warnings(seal), *_warnings(wakes_others=wakes_others), *_log_warnings(path)),
    )


def _durability(journal: str, synchronous: str) -> str:
    if journal == "wal" and synchronous in ("full", "extra"):
        return "what was acknowledged survives a crash of the machine and a power cut"
    return "what was acknowledged survives a crash of the program, not of the machine"


def _warnings(*, wakes_others: bool) -> list[str]:
    warnings = []
    if sqlite3.sqlite_version_info < SAFE_RELEASE:
        warnings.append(
            f"SQLite {sqlite3.sqlite_version} can corrupt a file when two connections checkpoint "
            "at the same moment (fixed in 3.51.3). Trellis checkpoints under a file lock; do not "
            "run `PRAGMA wal_checkpoint` from other programs on this file, and give connections "
            "of your own program that write to it `PRAGMA wal_autocheckpoint=0`."
        )
    if not wakes_others:
        warnings.append(
            "Other processes are not woken at once (no private folder for sockets in the "
            "temporary directory); they poll four times a second instead."
        )
    return warnings


# -- a log that grows --------------------------------------------------------------------------


def _log_warnings(path: Path) -> Iterator[str]:
    """Warn of a log that cannot be moved into the file because a program reads for too long."""
    log = Path(f"{path}-wal")
    size = _size(log)
    if size < _SHORT_LOG:
        return
    readers = _long_readers(Path(f"{path}-shm"))
    grown = f"{log} has grown to {size / _MIB:,.0f} MiB beside {_size(path) / _MIB:,.0f} MiB"
    if readers:
        yield (
            f"{grown}: {', '.join(map(_named, readers))} keeps a read transaction open, so nothing "
            "written since then can be moved into the file. End that transaction or that program. "
            f"The log then shrinks to {LOG_LIMIT // _MIB} MiB or less with the next writes."
        )
    elif size > _LONG_LOG:
        yield (
            f"{grown}. A program keeps a read transaction open, or kept one for long. Look for "
            f"programs that have the file open (`fuser -v {path}`) and end their transactions. The "
            f"log then shrinks to {LOG_LIMIT // _MIB} MiB or less with the next writes."
        )


def _long_readers(index: Path) -> list[int]:
    """Return the processes that read the database all the while, as far as the system shows."""
    reading: set[int] | None = None
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_SECONDS)
        found = _readers(index)
        reading = found if reading is None else reading & found
        if not reading:
            break
    return sorted(reading or ())


def _readers(index: Path) -> set[int]:
    """Return the other processes that read now and do not write."""
    try:
        inode, locks = str(index.stat().st_ino), _LOCKS.read_text().splitlines()
    except OSError:
        return set()
    readers, others = set(), {os.getpid()}
    for line in locks:
        # 1: POSIX  ADVISORY  READ 8927 fe:00:2263407 124 124
        _, kind, *_, pid, file, first, _ = line.replace("->", "").split()
        if kind != "POSIX" or file.rpartition(":")[2] != inode:
            continue
        if int(first) in _READERS:
            readers.add(int(pid))
        elif int(first) == _WRITER:
            others.add(int(pid))
    return readers - others


def _named(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({' '.join(command.split(chr(0)))[:80].strip()})"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
