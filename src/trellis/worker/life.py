"""A process we have started: signalled while it lives, never once its number may be another's."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from trellis.worker.evidence import wait_for


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
