"""The load by others: processor time used neither by the benchmark nor by its server."""

from __future__ import annotations

import time

from bench import machine
from bench.peers import processes


class Neighbours:
    """Counts the processor time of others.

    Children that have ended are counted with this process; the tree of the server is read.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._began, self._used = time.monotonic(), processes.cpu_seconds([server])
        self._all = machine.Neighbours()

    def cores(self) -> float:
        """Return how many cores others kept busy since the start."""
        busy = self._all.cores() or 0.0
        used = processes.cpu_seconds([self._server]) - self._used
        return max(0.0, busy - used / (time.monotonic() - self._began))
