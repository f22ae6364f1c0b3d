"""Processes that Trellis starts: setting up their interpreter, signalling them, how they ended."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final, NamedTuple

from trellis.worker.log import storable

MEGABYTE: Final = 1_000_000
#: Stands for an exit code that is not known; no exit code is as high.
UNKNOWN: Final = 1 << 8
#: ru_maxrss counts kilobytes, on macOS bytes.
_MEMORY_UNIT: Final = 1 if sys.platform == "darwin" else 1024

_PYTHONS_THRESHOLD: Final = (700, 10, 10)
#: More than the values of all jobs that a worker holds at a time. These values contain no cycles,
#: so the garbage collector would search through them repeatedly and find nothing.
_THRESHOLD: Final = (50_000, 10, 10)
_PYTHONS_SWITCH_INTERVAL: Final = 0.005
#: How long the loop may delay an engine's thread that has its answer from the disk, in seconds.
_SWITCH_INTERVAL: Final = 0.0002


def tune_interpreter() -> None:
    """Set the interpreter of this process up for running jobs, once the program is loaded.

    Only for processes that Trellis started: an embedded worker leaves the program's interpreter as
    it is. Settings that the program has changed are left alone.
    """
    if gc.get_threshold() == _PYTHONS_THRESHOLD:
        gc.collect()
        gc.freeze()  # what is loaded now stays, so the collector can skip it
        gc.set_threshold(*_THRESHOLD)
    if sys.getswitchinterval() == _PYTHONS_SWITCH_INTERVAL:
        sys.setswitchinterval(_SWITCH_INTERVAL)


class Life:
    """A process from its start to its end. Killing it and waiting for it may overlap.

    A process that leads a process group takes the whole group with it.
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
        """Send a signal, unless the process has ended: its pid may have been reused by then."""
        with self._guard:
            if not self._is_over:
                self._send(number)

    def wait(self) -> tuple[int, int]:
        """Wait until the process ends; return its code and its peak memory in bytes.

        If it ended badly, its group is killed too, so that nothing of its job continues. That is
        done before the pid is released, so that no other process can be hit.
        """
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            end = wait_for(self._pid)
            self._is_over = True
            return end
        try:
            seen = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # see `wait_for`
            seen = None
        with self._guard:
            if seen is not None and (seen.si_code, seen.si_status) != (os.CLD_EXITED, 0):
                self._send(signal.SIGKILL)
            self._is_over = True
            return wait_for(self._pid)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            self._kill(self._pid, number)


def wait_for(pid: int) -> tuple[int, int]:
    """Wait until the process ends; return its code and its peak memory in bytes."""
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:  # another part of this program waits for all its children
        return UNKNOWN, 0
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * _MEMORY_UNIT


def in_words(code: int) -> str:
    """Return how a process ended, in words."""
    if code == UNKNOWN:
        return "ended with an unknown exit code"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


class Ended(NamedTuple):
    """How a worker process ended."""

    #: As in `subprocess`: the exit code, or minus the signal that killed it.
    code: int
    #: Its peak memory, in bytes.
    peak_memory: int
    last_lines: tuple[str, ...]

    @property
    def how(self) -> str:
        """The exit in a few words."""
        return in_words(self.code)

    def evidence(self, *, more: str = "") -> str:
        """Return all that is known, for the error of a job."""
        memory = f"peak memory {self.peak_memory // MEGABYTE} MB"
        text = f"The process {self.how} ({memory}).{f' {more}' if more else ''}"
        if self.last_lines:
            text += " Its last lines:\n" + "\n".join(self.last_lines)
        return storable(text, 4096)


class Death(NamedTuple):
    """How a handler process ended."""

    #: As in `subprocess`: the exit code, or minus the signal that killed it.
    code: int
    #: Its peak memory, in bytes.
    peak_memory: int
    #: False if the peak is only an upper bound: the kernel starts counting at the worker's memory.
    is_peak_exact: bool = True
    last_lines: tuple[str, ...] = ()
    #: What else is known.
    remark: str = ""

    def evidence(self) -> str:
        """Return all that is known, for the error of a job."""
        at_most = "" if self.is_peak_exact else "at most "
        memory = f"peak memory {at_most}{self.peak_memory // MEGABYTE} MB"
        text = f"The handler's process {in_words(self.code)} ({memory})."
        if self.remark:
            text += f" {self.remark}"
        if self.last_lines:
            text += " Its last lines:\n" + "\n".join(self.last_lines)
        return text
