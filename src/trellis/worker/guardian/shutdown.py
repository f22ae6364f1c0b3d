"""What SIGTERM, SIGINT and SIGHUP do: the steps in which a guardian and its processes stop.

1. The signal handler, which `trellis worker` installs, calls `Guardian.stop`, and that
   `Shutdown.request`. From now on no worker process is started.
2. A worker process that has not opened a session is killed: it holds no job.
3. Every other worker process gets the message `stop` (`stop_process`). It claims no more jobs,
   hands back attempts that have not begun, and lets handlers finish within the grace. Then it stops
   the remaining handlers, hands back their attempts and exits (`Supervisor.stop`). Attempts whose
   handlers cannot be stopped are left to steps 5 and 6.
4. A second signal sends `stop_now`, which ends the grace.
5. A process that has not exited 0.75 s after the grace, or after `stop_now`, is killed.
6. The guardian settles the attempts that a process still held (`settle_dead.py`). It tries for at
   most 0.75 s; after that other workers take the jobs when the lease expires.
7. The guardian closes its engine and exits: with 0, or with 130 after a second signal.

So stopping takes at most the grace and two seconds more, even if a handler cannot be interrupted. A
process that is replaced (memory limit, changed source files, too many processes with lost threads)
goes through steps 3 to 6 alone. Its jobs are handed back, also those of types with
`on_shutdown="fail"`: the worker itself works on.

If the guardian is killed instead, its worker processes see the end of the channel and stop as after
step 3. Signals that reach a worker process directly are ignored there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from trellis.core.durations import SECOND, Micros, in_words
from trellis.worker.child_process import ProcessEnd
from trellis.worker.guardian.worker_process import WorkerProcess

#: How long a process may take to exit after the grace, and its attempts to be settled, in seconds.
_AFTER_GRACE: Final = 0.75
#: Some launchers signal the guardian and then its group: a second signal this soon is the same one.
_SAME_REQUEST: Final = 0.5
#: How long a process that has finished may take to exit, in seconds.
_EXIT_TIMEOUT: Final = 5.0
_logger = logging.getLogger("trellis.guardian")


class Shutdown:
    """Whether the guardian stops, and how fast."""

    def __init__(self, grace: Micros) -> None:
        self.grace = grace
        #: Set by the first signal, or when the guardian has to end for another reason.
        self.requested = asyncio.Event()
        #: Set by a second signal.
        self.immediate = asyncio.Event()
        self._requested_at = 0.0

    def request(self) -> None:
        """Stop gracefully; when called again, stop immediately."""
        now = time.monotonic()
        if not self.requested.is_set():
            self.requested.set()
            self._requested_at = now
            _logger.info(
                "Stopping: handlers have %s to finish; a second signal stops at once.",
                in_words(self.grace),
            )
        elif not self.immediate.is_set() and now - self._requested_at > _SAME_REQUEST:
            self.immediate.set()
            _logger.info("Stopping at once.")

    def settling_time(self, lease: Micros) -> float:
        """Return for how many seconds the guardian tries to settle the attempts of a process."""
        return _AFTER_GRACE if self.requested.is_set() else lease / SECOND


async def stop_process(
    process: WorkerProcess, end: asyncio.Task[ProcessEnd], shutdown: Shutdown
) -> None:
    """Ask a process to stop within the grace, and kill it if it does not."""
    process.is_replaced = not shutdown.requested.is_set()
    await process.send("stop", replaced=process.is_replaced)
    immediate = asyncio.create_task(shutdown.immediate.wait())
    limit = shutdown.grace / SECOND + _AFTER_GRACE
    await asyncio.wait((end, immediate), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    if immediate.done():
        await process.send("stop_now")
        await asyncio.wait((end,), timeout=_AFTER_GRACE)
    immediate.cancel()
    if not end.done():
        _logger.warning(
            "Worker process %d did not exit within the grace and is killed.", process.pid
        )
        process.kill()


async def wait_for_exit(process: WorkerProcess, end: asyncio.Task[ProcessEnd]) -> None:
    """Wait for a process that has finished; kill it if its threads keep it from exiting."""
    await asyncio.wait((end,), timeout=_EXIT_TIMEOUT)
    if not end.done():
        process.kill()
