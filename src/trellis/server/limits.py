"""How much one caller and all callers together may ask of a server.

The numbers count in one server process: several servers behind a balancer allow as many times as
much. They protect the store from a caller that runs wild, not from an attack on the network.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from typing import Final

from starlette.exceptions import HTTPException

#: Callers whose use is remembered; the one that was idle longest is forgotten first.
_CALLERS: Final = 10_000
#: Seconds after which a refused stream may be tried again.
_STREAM_RETRY: Final = "10"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server."""

    #: Requests per second of one token, and how many at once after a pause; 0: no limit.
    rate: float = 5000
    burst: int = 10_000
    #: The most bytes of a request's body; the payload limit of a job is checked when it is created.
    body: int = 2 * 1024 * 1024
    #: Seconds within which the body must have arrived.
    body_seconds: float = 30
    #: Streams that are open at the same time, of all callers and of one token.
    streams: int = 500
    streams_per_token: int = 250
    #: Seconds after which a stream ends whose client reads nothing.
    stream_patience: float = 30
    #: Seconds between two heartbeats of a stream, and between two checks of its token.
    heartbeat: float = 15


class Requests:
    """A bucket per caller that fills by the rate; a request takes one token of it."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = limits.rate, limits.burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count a request; raise 429 if the caller has made too many."""
        if not self._rate:
            return
        now = self._clock()
        left, since = self._buckets.pop(caller, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._rate)
        allowed = left >= 1
        self._buckets[caller] = (left - 1 if allowed else left, now)
        if len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"This token may make {self._rate:g} requests per second. Nothing was changed.",
                {"Retry-After": str(ceil((1 - left) / self._rate))},
            )


class Streams:
    """The open streams, by caller."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """How many are open."""
        return self._open.total()

    def enter(self, caller: str) -> None:
        """Count a stream until it leaves; raise 429 or 503 if no further one may be opened."""
        if self._open.get(caller, 0) >= self._limits.streams_per_token:
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"This token has {self._limits.streams_per_token} open streams. Close one first.",
                {"Retry-After": _STREAM_RETRY},
            )
        if self.open >= self._limits.streams:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"This server has {self._limits.streams} open streams, the most that it serves. "
                "Try again later.",
                {"Retry-After": _STREAM_RETRY},
            )
        self._open[caller] += 1

    def leave(self, caller: str) -> None:
        """Count a stream no more."""
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]
