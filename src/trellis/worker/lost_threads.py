"""Lost threads: plain handlers that run on although their attempts have ended.

Python cannot stop a thread. A handler that outlives its timeout, a forced cancel or its lease keeps
its thread until it returns by itself. Its slot does not wait for that: another slot opens for it,
up to as many as the worker has, so that the threads of a worker at most double. A guarded process
asks its guardian for a successor, which ends the lost threads with the process. An embedded worker
cannot be replaced; it works with more threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from trellis.core.durations import SECOND, in_words
from trellis.core.job import Fence
from trellis.worker.attempt import Attempt, HeldAttempts, Stop
from trellis.worker.session import EngineTime

#: Handlers that look at `job.stopping` or use `job.track` end by themselves within this time.
PATIENCE: Final = SECOND
#: A process that is younger than this, in seconds, is replaced only when the lost threads have used
#: up half of the further slots: starting a process is work too.
_YOUNG: Final = 5.0
_WHY: Final = {
    Stop.TIMEOUT: "after its timeout",
    Stop.LOST: "after its job was cancelled or lost",
    Stop.UNREACHABLE: "after its lease could not be renewed",
    Stop.SHUTDOWN: "after the grace",
    Stop.REPLACED: "after the grace",
}
_logger = logging.getLogger(__name__)


class LostThreads:
    """Counts the lost threads of a worker process and decides what follows from them."""

    def __init__(
        self, slots: int, attempts: HeldAttempts, engine_time: EngineTime, *, guarded: bool
    ) -> None:
        self._slots = slots
        self._attempts = attempts
        self._time = engine_time
        self._guarded = guarded
        #: The numbers of the slots that can still be opened.
        self._spare = list(range(2 * slots - 1, slots - 1, -1))
        self._logged: set[Fence] = set()
        self._began = time.monotonic()
        #: Set when a process should be replaced because of its lost threads.
        self.replacement_wanted = asyncio.Event()

    def add(self, attempt: Attempt) -> int | None:
        """Count the thread of an attempt that has ended; return the number of a slot to open."""
        if attempt.lost_at is not None:
            return None
        attempt.lost_at = self._time.now()
        self._attempts.lost[attempt.fence] = attempt
        if not self._spare:
            return None  # it keeps its slot
        del self._attempts.running[attempt.fence]
        return self._spare.pop()

    def remove(self, attempt: Attempt) -> bool:
        """Forget a lost thread that has ended; return whether its slot must close."""
        lost, running = self._attempts.lost, self._attempts.running
        if lost.pop(attempt.fence, None) is None or attempt.fence in running:
            return False
        self._logged.discard(attempt.fence)
        # If another lost thread keeps its slot, this slot goes on in place of that one.
        return all(running.pop(other.fence, None) is None for other in lost.values())

    def add_closed(self, number: int) -> None:
        """Accept the number of a slot that has closed: it can be opened again."""
        self._spare.append(number)

    def check(self) -> None:
        """Log threads that have been lost for a while, and ask for a replacement of the process."""
        lasting = lasting_threads(self._attempts, self._time)
        for attempt in lasting:
            if attempt.fence not in self._logged:
                self._logged.add(attempt.fence)
                self._log(attempt)
        if not (lasting and self._guarded) or self.replacement_wanted.is_set():
            return
        is_young = time.monotonic() - self._began < _YOUNG
        if not is_young or 2 * len(self._attempts.lost) >= self._slots:
            self.replacement_wanted.set()

    def _log(self, attempt: Attempt) -> None:
        lost = len(self._attempts.lost)
        if self._guarded:
            then = "This worker process is replaced."
        elif attempt.fence in self._attempts.running:
            then = f"It keeps its slot, as {lost} threads are lost. Restart this program."
        else:
            then = f"Another slot was opened for it (lost threads: {lost}; most: {self._slots})."
        why = _WHY[attempt.stop_reason or Stop.LOST]
        _logger.warning(
            "The thread of job %s (%s) still runs %s %s. A thread cannot be stopped. %s",
            attempt.record.definition.id, attempt.type.name, in_words(PATIENCE), why, then,
        )  # fmt: skip


def lasting_threads(attempts: HeldAttempts, engine_time: EngineTime) -> list[Attempt]:
    """Return the attempts whose threads did not end soon after them; safe from any thread."""
    before = engine_time.now() - PATIENCE
    lost = tuple(attempts.lost.values())
    return [each for each in lost if each.lost_at is not None and each.lost_at <= before]
