"""What is known about the end of a process, in words that help whoever reads them later.

A process we have started: signalled while it lives, never once its number may be another's.

How a handler process ended, in words that help whoever reads the job's error later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final, NamedTuple

from trellis.worker.log import storable

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


class Life:
    """A process until its end; killing it and seeing its end do not get into each other's way.

    One that leads a group of its own takes the whole group with it.
    """

    def __init__(self, pid: int, *, leads_group: bool) -> None:
        self._pid = pid
        self._kill = os.killpg if leads_group else os.kill
        self._guard = threading.Lock()
        self._is_over = False

    def kill(self) -> None:
        """End the process, and its group, at once."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended: its number may be another's by then."""
        with self._guard:
            if not self._is_over:
                self._send(number)

    def wait(self) -> tuple[int, int]:
        """Wait until the process ends; return its code and its peak memory in bytes.

        If it ended badly, its group ends too: nothing of its job may go on. That is done while its
        number is still taken, so that nobody else can be hit.
        """
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            end = wait_for(self._pid)
            self._is_over = True
            return end
        try:
            seen = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # `wait_for` says what that means
            seen = None
        with self._guard:
            if seen is not None and (seen.si_code, seen.si_status) != (os.CLD_EXITED, 0):
                self._send(signal.SIGKILL)
            self._is_over = True
            return wait_for(self._pid)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            self._kill(self._pid, number)


class Death(NamedTuple):
    """The end of a handler process."""

    #: As in `subprocess`: the exit code, or minus the signal that killed it.
    code: int
    #: The most memory it had, in bytes, ...
    peak_memory: int
    #: ... or might have had: the kernel starts its count with what the worker had.
    is_peak_exact: bool = True
    last_lines: tuple[str, ...] = ()
    #: What else is known.
    remark: str = ""

    def evidence(self) -> str:
        """Return everything, for the job's error."""
        at_most = "" if self.is_peak_exact else "at most "
        memory = f"peak memory {at_most}{self.peak_memory // MEGABYTE} MB"
        text = f"The handler's process {in_words(self.code)} ({memory})."
        if self.remark:
            text += f" {self.remark}"
        if self.last_lines:
            text += " Its last lines:\n" + "\n".join(self.last_lines)
        return text
