"""The time of the engine: the server's, or that of a given clock.

Servers and connections differ by fractions of a millisecond. So that the times of a journal never
go back, the engine's time is never before that of an event it has read.
"""

from __future__ import annotations

import time

from trellis.core.durations import SECOND, Instant
from trellis.engines.clock import Clock
from trellis.engines.jetstream.link import Link


class Time:
    """Tells the time between two looks at the server's clock."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._offset = 0
        self._floor = 0

    async def learn(self, link: Link, stream: str) -> None:
        """Look at the server's clock."""
        if self._clock is not None:
            return
        told, before, after = await link.server_time(stream)
        self._offset = told - round((before + after) / 2 * SECOND)

    def now(self) -> Instant:
        """Return the time."""
        if self._clock is not None:
            return self._clock.now()
        self._floor = max(self._floor, round(time.monotonic() * SECOND) + self._offset)
        return self._floor

    def saw(self, at: Instant) -> None:
        """Record that there is an event of this time."""
        self._floor = max(self._floor, at)
