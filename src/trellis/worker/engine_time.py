"""The engine's time, as a worker knows it: the last `now` an answer carried plus the time since.

The worker's own wall clock is never read, so a wrong one changes nothing.
"""

from __future__ import annotations

import time

from trellis.core.spans import Instant


class EngineTime:
    """A clock that is set by the engine's answers; reading and setting work from any thread."""

    __slots__ = ("_ahead",)

    def __init__(self, now: Instant) -> None:
        self._ahead = 0
        self.learn(now)

    def learn(self, now: Instant) -> None:
        """Take over the time of an answer that has just come."""
        self._ahead = now - time.monotonic_ns() // 1000

    def now(self) -> Instant:
        """Return the engine's time, as far as known here."""
        return self._ahead + time.monotonic_ns() // 1000
