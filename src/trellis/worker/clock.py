"""The clock of this machine that nobody can set and that counts through suspend.

The engine's time, as a worker knows it: an estimate that every answer of the engine narrows.

The worker's own wall clock is never read, so a wrong one changes nothing.
"""

from __future__ import annotations

import time
from time import clock_gettime_ns
from typing import Final

from trellis.core.durations import Instant, Micros

SOURCE: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> Micros:
    """Return microseconds since the machine started; engines judge leases by the same clock."""
    return time.clock_gettime_ns(SOURCE) // 1000


class EngineTime:
    """A clock that is set by the engine's answers: on the worker's loop; read by any thread."""

    __slots__ = ("_ahead",)

    def __init__(self, now: Instant) -> None:
        self._ahead = now - uptime()

    def learn(self, now: Instant, sent: Micros) -> None:
        """Take in the time of an answer to a request that was sent at this `uptime`.

        The engine read its clock after the request was sent and before now. The loop may come to
        the answer late, so what is known already stays unless these bounds exclude it.
        """
        at_least, at_most = now - uptime(), now - sent
        self._ahead = min(max(self._ahead, at_least), at_most)

    def now(self) -> Instant:
        """Return the engine's time, as far as known here."""
        return self._ahead + clock_gettime_ns(SOURCE) // 1000  # `uptime()`; asked once per job
