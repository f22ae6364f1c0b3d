"""The time of the engine: the server's, or that of a given clock.

Servers and connections differ by fractions of a millisecond. So that the times of a journal never
go back, the engine's time is never before that of an event it has read. The server read its clock
between a request and its answer, which can be seconds apart: during an election, or when this
process was stopped in between. So the estimate changes only if these bounds exclude it. Between
two looks the machine's uptime counts, suspend included; an old look is repeated, because the
server's clock can be set, and another server can lead.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from trellis.core.durations import SECOND, Instant, Micros
from trellis.engines.clock import Clock, uptime
from trellis.engines.jetstream.link import Link
from trellis.errors import EngineError

#: How often the server's clock is looked at first, until a look takes less than so many seconds.
_LOOKS: Final = 5
_CLOSE: Final[Micros] = SECOND // 10
#: When a look is old, and how many seconds it may then take until the old one is used on.
_OLD: Final[Micros] = 30 * SECOND
_WAIT: Final = 1.0
#: How far the clocks of servers may differ.
_AHEAD: Final[Micros] = 60 * SECOND


class Time:
    """Tells the time between two looks at the server's clock."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        #: How far the server's clock is ahead of ours; None: no answer came yet.
        self._offset: int | None = None
        self._floor = 0
        #: When the last look began, by the uptime of this machine.
        self._looked_at: Micros = 0

    async def refresh(self, link: Link, stream: str) -> None:
        """Look at the server's clock if the last look is old; without an answer, that one counts.

        Nothing that ends the lease of another process rests on this: `learn` is for that.
        """
        if self._clock is None and uptime() - self._looked_at > _OLD:
            with suppress(EngineError):
                await self.learn(link, stream, wait=_WAIT)

    async def learn(self, link: Link, stream: str, **patience: float) -> None:
        """Look at the server's clock; `wait`: for how many seconds at most."""
        if self._clock is not None:
            return
        self._looked_at = uptime()  # until it is there, others do not look
        looks = _LOOKS if self._offset is None else 1
        for _ in range(looks):
            told, before, after = await link.server_time(stream, **patience)
            self._narrow(told - after, told - before)
            if after - before < _CLOSE:
                return

    def _narrow(self, at_least: int, at_most: int) -> None:
        if self._offset is None:
            self._offset = (at_least + at_most) // 2
        self._offset = min(max(self._offset, at_least), at_most)

    def now(self) -> Instant:
        """Return the time."""
        if self._clock is not None:
            return self._clock.now()
        self._floor = max(self._floor, uptime() + (self._offset or 0))
        return self._floor

    def told(self) -> Instant:
        """Return the time as the server told it, whatever times events have: leases go by it."""
        return self.now() if self._clock is not None else uptime() + (self._offset or 0)

    def saw(self, at: Instant) -> None:
        """Record that there is an event of this time.

        One that is far ahead of the server's clock moves nothing: the users of each service write
        times, and leases and deadlines of all services are judged by this one.
        """
        if at <= uptime() + (self._offset or 0) + _AHEAD:
            self._floor = max(self._floor, at)
