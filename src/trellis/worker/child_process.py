"""A child process of a guardian or a worker: its interpreter, how it is signalled, how it ended.

`ChildProcess` sends signals only while the process id still belongs to the child. `ProcessEnd`
holds the exit code or signal, the peak memory and the last lines of stderr, and describes them for
the error of a job.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from typing import Final, NamedTuple

MEGABYTE: Final = 1_000_000
#: Replaces an exit code that could not be read; real exit codes are smaller.
UNKNOWN: Final = 1 << 8
#: ru_maxrss counts kilobytes, on macOS bytes.
_MEMORY_UNIT: Final = 1 if sys.platform == "darwin" else 1024

#: Those of Python up to 3.12, of 3.13, and of 3.14.
_PYTHONS_THRESHOLDS: Final = frozenset({(700, 10, 10), (2000, 10, 10), (2000, 10, 0)})
#: More than the values of all jobs that a worker holds at a time. These values contain no cycles,
#: so the garbage collector would search through them repeatedly and find nothing.
_THRESHOLD: Final = (50_000, 10, 10)
_PYTHONS_SWITCH_INTERVAL: Final = 0.005
#: How long the loop may delay an engine's thread that has its answer from the disk, in seconds. The
#: writer of SQLite waits so long after each statement: with 0.2 ms a drain is a fifth slower.
_SWITCH_INTERVAL: Final = 0.00005


def tune_interpreter() -> None:
    """Set the interpreter of this process up for running jobs, once the program is loaded.

    Only for processes that Trellis started: an embedded worker leaves the program's interpreter as
    it is. Settings that the program has changed are left alone.
    """
    tune_collector()
    if sys.getswitchinterval() == _PYTHONS_SWITCH_INTERVAL:
        sys.setswitchinterval(_SWITCH_INTERVAL)


def tune_collector() -> None:
    """Let the garbage collector search less: for processes that handle many values at a time."""
    if gc.get_threshold() in _PYTHONS_THRESHOLDS:
        gc.collect()
        gc.freeze()  # what is loaded now stays, so the collector can skip it
        gc.set_threshold(*_THRESHOLD)


class ProcessEnd(NamedTuple):
    """How a child process ended."""

    #: As in `subprocess`: the exit code, or minus the signal that killed it.
    code: int
    #: The most memory it used, in bytes.
    peak_memory: int
    last_lines: tuple[str, ...] = ()
    #: False if the peak may belong to the parent: the kernel starts to count before the exec.
    is_peak_exact: bool = True
    #: Further information.
    remark: str = ""

    @property
    def how(self) -> str:
        """The exit in a few words."""
        if self.code == UNKNOWN:
            return "ended with an unknown exit code"
        if self.code >= 0:
            return f"exited with code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        hint = " (out of memory?)" if -self.code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"

    def evidence(self, process: str = "The process") -> str:
        """Return everything that is known, for the error of a job."""
        at_most = "" if self.is_peak_exact else "at most "
        memory = f"peak memory {at_most}{self.peak_memory // MEGABYTE} MB"
        text = f"{process} {self.how} ({memory})."
        if self.remark:
            text += f" {self.remark}"
        if self.last_lines:
            text += "\nIts last lines:\n" + "\n".join(self.last_lines)
        return text


class ChildProcess:
    """A child process until its end; `kill` and `wait` may be called in different threads.

    If it leads a process group, its signals go to the whole group.
    """

    def __init__(self, pid: int, *, leads_group: bool) -> None:
        self._pid = pid
        self._kill = os.killpg if leads_group else os.kill
        self._guard = threading.Lock()
        self._has_ended = False

    def kill(self) -> None:
        """End the process, and its group, immediately."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended: its id may then belong to another one."""
        with self._guard:
            if not self._has_ended:
                self._send(number)

    def wait(self) -> tuple[int, int]:
        """Wait until the process ends; return its exit code and its peak memory in bytes.

        After any exit but a successful one its group is killed too, so that nothing its job has
        started goes on. That happens before the process id is released, so it cannot hit an
        unrelated process.
        """
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            result = _reap(self._pid)
            self._has_ended = True
            return result
        try:
            seen = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # see `_reap`
            seen = None
        with self._guard:
            if seen is not None and (seen.si_code, seen.si_status) != (os.CLD_EXITED, 0):
                self._send(signal.SIGKILL)
            self._has_ended = True
            return _reap(self._pid)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            self._kill(self._pid, number)


def own_peak_memory() -> int:
    """Return the most memory that this process has used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MEMORY_UNIT


def _reap(pid: int) -> tuple[int, int]:
    """Wait until the process ends; return its exit code and its peak memory in bytes."""
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:  # other code in this program has waited for all its children
        return UNKNOWN, 0
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * _MEMORY_UNIT
