"""What the operating system knows about a process: whether it is stopped, how much memory it has.

Linux tells in /proc; elsewhere `ps` does, which is asked only when there is a reason.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_HAS_PROC: Final = (_PROC / "self" / "stat").exists()
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def is_stopped(pid: int) -> bool:
    """Tell whether a signal or a debugger has stopped the process."""
    return _state(pid)[:1] in {"T", "t"}


def resident_memory(pid: int) -> int:
    """Return the bytes of memory the process uses now; 0 if nobody knows."""
    with suppress(OSError, ValueError, IndexError):
        if _HAS_PROC:
            return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
        return int(_ps(pid, "rss")) * 1024
    return 0


def _state(pid: int) -> str:
    with suppress(OSError, IndexError):
        if _HAS_PROC:
            # The name in parentheses may contain anything, parentheses too.
            return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        return _ps(pid, "state")
    return ""


def _ps(pid: int, what: str) -> str:
    command = ["ps", "-o", f"{what}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
