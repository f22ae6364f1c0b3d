"""The clocks of a worker: the uptime of its machine, and an estimate of the engine's time.

The worker never reads its own wall clock, so a wrong one changes nothing.
"""

from __future__ import annotations

import time
from time import clock_gettime_ns
from typing import Final

from trellis.core.durations import Instant, Micros

#: Counts through suspend, and cannot be set.
SOURCE: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> Micros:
    """Return microseconds since the machine started; engines measure leases by the same clock."""
    return time.clock_gettime_ns(SOURCE) // 1000


class EngineTime:
    """The engine's time, estimated from its answers; set on the worker's loop, read anywhere."""

    __slots__ = ("_ahead",)

    def __init__(self, now: Instant) -> None:
        self._ahead = now - uptime()

    def learn(self, now: Instant, sent: Micros) -> None:
        """Use the time in an answer to a request that was sent at this `uptime`.

        The engine read its clock after the request was sent and before now. The loop may process
        the answer late, so the estimate stays as it is unless these bounds exclude it.
        """
        at_least, at_most = now - uptime(), now - sent
        self._ahead = min(max(self._ahead, at_least), at_most)

    def now(self) -> Instant:
        """Return the estimated time of the engine."""
        return (
            self._ahead + clock_gettime_ns(SOURCE) // 1000
        )  # `uptime()`, inlined: called for every job
