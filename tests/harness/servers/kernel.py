"""Three calls to the Linux kernel that Python has no name for."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_IPC_RMID: Final = 0


def adopt_orphans() -> None:
    """Become the parent of whatever our children leave behind, in the place of process 1."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Called in a new child: it gets SIGQUIT (PostgreSQL: stop at once) when its parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)


def remove_shared_memory(segment: int) -> None:
    """Remove a System V segment that a killed server could not remove itself."""
    _LIBC.shmctl(segment, _IPC_RMID, None)


def children_of(parent: int) -> set[int]:
    """Return the living children of a process and those nobody has waited for."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return {pid for pid in pids if _parent_of(pid) == parent}


def _parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])  # the name in parentheses may hold anything
