"""Append-only logs that survive `kill -9`: one file per process, one write per record.

Every record carries `t`, nanoseconds since boot: a clock nobody sets, the same for all processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path


def boot_ns() -> int:
    """Return the time on the clock of all logs."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def payload_hash(payload: object) -> str:
    """Name a payload, however its text is laid out."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Log:
    """A file of JSON lines that is only ever appended to."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **facts: object) -> int:
        """Append one record with a single write; return its time."""
        t = boot_ns()
        line = json.dumps({"t": t, **facts}, separators=(",", ":")) + "\n"
        os.write(self._file, line.encode())
        return t
