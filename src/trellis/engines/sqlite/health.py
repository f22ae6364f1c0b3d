"""The health of a SQLite engine: the build, the settings in force, what is wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from trellis.engines.sqlite import schema
from trellis.engines.sqlite.connection import SAFE_RELEASE, read_setting
from trellis.engines.values import Health

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
        "wakes_other_processes": wakes_others,
    }
    return Health(
        "sqlite",
        _durability(journal, synchronous),
        facts,
        tuple(_warnings(wakes_others=wakes_others)),
    )


def _durability(journal: str, synchronous: str) -> str:
    if journal == "wal" and synchronous in ("full", "extra"):
        return "K2: what was acknowledged survives a crash of the machine and a power cut"
    return "K1: what was acknowledged survives a crash of the program, not of the machine"


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
