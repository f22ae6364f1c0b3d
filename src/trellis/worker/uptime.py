"""The clock of this machine that nobody can set and that counts through suspend."""

from __future__ import annotations

import time
from typing import Final

from trellis.core.spans import Micros

SOURCE: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> Micros:
    """Return microseconds since the machine started; engines judge leases by the same clock."""
    return time.clock_gettime_ns(SOURCE) // 1000
