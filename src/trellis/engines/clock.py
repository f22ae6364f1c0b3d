"""The clocks of an embedded engine: the wall clock, and one for leases.

Leases are judged by a clock that cannot be set and that counts during suspend, together with the id
of this boot: a stepped wall clock lapses no lease, and a reboot ends every lease at once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Protocol

from trellis.core.durations import Instant, Micros

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
#: Counts through suspend, and cannot be set.
UPTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> Micros:
    """Return microseconds since the machine started, suspend included."""
    return time.clock_gettime_ns(UPTIME) // 1000


class Clock(Protocol):
    """The time sources of an embedded engine."""

    def now(self) -> Instant:
        """Return the wall clock."""

    def lease_now(self) -> int:
        """Return microseconds that never decrease within one boot."""

    def boot_id(self) -> str:
        """Return the id of this boot of the machine."""


class SystemClock:
    """The clocks of the machine."""

    def __init__(self) -> None:
        self._boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"

    def now(self) -> Instant:
        """Return the wall clock."""
        return time.time_ns() // 1000

    def lease_now(self) -> int:
        """Return microseconds since boot, suspend included."""
        return uptime()

    def boot_id(self) -> str:
        """Return the id of this boot of the machine."""
        return self._boot_id
