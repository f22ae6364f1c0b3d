"""What is known about the end of a process, in words that help whoever reads them later."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final, NamedTuple

from trellis.worker.texts import storable

MEGABYTE: Final = 1_000_000
#: No exit code is as high.
UNKNOWN: Final = 1 << 8
#: ru_maxrss counts kilobytes, on macOS bytes.
_MEMORY_UNIT: Final = 1 if sys.platform == "darwin" else 1024


class Ended(NamedTuple):
    """How a process ended."""

    #: As in `subprocess`: the exit code, or minus the signal that killed it.
    code: int
    #: The most memory it had, in bytes.
    peak_memory: int
    last_lines: tuple[str, ...]

    @property
    def how(self) -> str:
        """The exit in a few words."""
        return in_words(self.code)

    def evidence(self, *, more: str = "") -> str:
        """Return everything, for the job's error."""
        memory = f"peak memory {self.peak_memory // MEGABYTE} MB"
        text = f"The process {self.how} ({memory}).{f' {more}' if more else ''}"
        if self.last_lines:
            text += " Its last lines:\n" + "\n".join(self.last_lines)
        return storable(text, 4096)


def wait_for(pid: int) -> tuple[int, int]:
    """Wait until the process ends; return its code and its peak memory in bytes."""
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:  # somebody else in this program waits for all its children
        return UNKNOWN, 0
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * _MEMORY_UNIT


def in_words(code: int) -> str:
    """Say how a process ended."""
    if code == UNKNOWN:
        return "ended, nobody saw how"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
