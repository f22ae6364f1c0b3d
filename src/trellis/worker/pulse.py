"""How well this process is in touch with the engine, told by its renewals.

Only a steady process may judge others: after an outage of the engine everybody looks silent, so
whoever has noticed one gives the others a full lease to be heard again.
"""

from __future__ import annotations

from collections.abc import Callable

from trellis.core.spans import Micros
from trellis.worker.uptime import uptime


class Pulse:
    """The renewals of one process; the lease thread writes it, the worker's loop reads it."""

    def __init__(
        self, lease: Micros, heartbeat: Micros, clock: Callable[[], Micros] = uptime
    ) -> None:
        self._lease = lease
        # With three renewals per lease, an outage that goes unnoticed here is too short to have
        # cost anybody the lease.
        self._longest_gap = heartbeat * 3 // 2
        self._clock = clock
        #: When the last successful renewal was sent.
        self.renewed = clock()
        self._steady_since = self.renewed

    def beat(self, sent: Micros) -> None:
        """Note that a renewal that was sent then has just succeeded."""
        now = self._clock()
        if now - self.renewed > self._longest_gap:
            self._steady_since = now
        self.renewed = sent

    def miss(self) -> None:
        """Note that a renewal has failed."""
        self._steady_since = self._clock()

    @property
    def is_steady(self) -> bool:
        """Whether renewals have come without a gap for one full lease."""
        now = self._clock()
        return now - self.renewed <= self._longest_gap and now - self._steady_since >= self._lease

    @property
    def is_out_of_reach(self) -> bool:
        """Whether the lease may be over by now."""
        return self._clock() - self.renewed >= self._lease
