"""How a handler process ended, in words that help whoever reads the job's error later."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Final, NamedTuple

from trellis.worker.evidence import in_words, wait_for

_MEGABYTE: Final = 1 << 20


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
        memory = f"peak memory {at_most}{self.peak_memory // _MEGABYTE} MB"
        text = f"The handler's process {in_words(self.code)} ({memory})."
        if self.remark:
            text += f" {self.remark}"
        if self.last_lines:
            text += " Its last lines:\n" + "\n".join(self.last_lines)
        return text


class Life:
    """A process until its end; killing it and seeing its end do not get into each other's way."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._guard = threading.Lock()
        self._is_over = False

    def kill(self) -> None:
        """End the process, and whatever it has started, at once."""
        with self._guard:
            if not self._is_over:
                self._kill_group()

    def wait(self) -> tuple[int, int]:
        """Wait until the process ends; return its code and its peak memory in bytes.

        If it ended badly, whatever it had started ends too: nothing of its job may go on. That is
        done while its number is still taken, so that nobody else can be hit.
        """
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            end = wait_for(self._pid)
            self._is_over = True
            return end
        seen = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        with self._guard:
            if seen is None or (seen.si_code, seen.si_status) != (os.CLD_EXITED, 0):
                self._kill_group()
            self._is_over = True
            return wait_for(self._pid)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
