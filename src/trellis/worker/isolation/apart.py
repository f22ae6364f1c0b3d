"""Types that crashed their process recently run apart, each job in a handler process, for a while.

A job that ends its process ends the jobs beside it too. It becomes a suspect only afterwards, so a
stream of such jobs would end one process after another. When a type is known to crash, its next
jobs run in handler processes from the start, and a crash costs only the job that caused it. The
guardian remembers these types (`guardian/crashed_types.py`) and tells each worker process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from trellis.declaration.imports import around_modules, importable_lifespan
from trellis.declaration.worker_location import WorkerLocation
from trellis.errors import ConfigurationError
from trellis.worker.local_type import LocalType

#: How long the jobs of a type run apart after a crash, in seconds: long enough that a lasting fault
#: costs few processes, short enough that a mended one costs little time in handler processes.
APART: Final = 600.0
_logger = logging.getLogger(__name__)


class ApartTypes:
    """Knows which types of this worker process run apart, and reports crashes of their jobs."""

    def __init__(
        self, types: Iterable[LocalType], locations: Mapping[str, WorkerLocation], slots: int
    ) -> None:
        self._most = max(1, slots // 2)
        self._able = {each.name: each for each in types if _can_run_apart(each, locations)}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: The types (service/type) whose handlers have crashed their handler process.
        self.crashed: asyncio.Queue[str] = asyncio.Queue()

    def add_crash(self, local_type: LocalType) -> None:
        """Run the jobs of a type apart, because one of them has crashed its handler process."""
        self.crashed.put_nowait(local_type.name)
        self._begin(local_type.name, APART)

    def replace(self, seconds: Mapping[str, float]) -> None:
        """Run exactly these types apart, each for so many seconds."""
        for name in self._timers.keys() - seconds.keys():
            self._end(name)
        for name, left in seconds.items():
            self._begin(name, left)

    def _begin(self, name: str, seconds: float) -> None:
        if name not in self._able:
            return
        if name in self._timers:
            self._timers[name].cancel()
        else:
            _logger.warning(
                "Jobs of %s run in handler processes for a while: one of them, or one beside it, "
                "has crashed its process.",
                name,
            )
        local_type = self._able[name]
        local_type.in_process = True
        # Attempts that wait for a process must not take all slots from jobs that need none.
        local_type.limit = min(local_type.job_type.concurrency or self._most, self._most)
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, self._end, name)

    def _end(self, name: str) -> None:
        self._timers.pop(name).cancel()
        local_type = self._able[name]
        local_type.in_process = False
        local_type.limit = local_type.job_type.concurrency


def _can_run_apart(local_type: LocalType, locations: Mapping[str, WorkerLocation]) -> bool:
    """Return whether a type that is not declared so can run in a handler process."""
    if local_type.in_process or local_type.handler_name is None:
        return False
    service = local_type.job_type.service
    location = locations.get(service)
    try:
        around_modules(local_type.job_type)
        if location is not None and location.make_lifespan is not None:
            importable_lifespan(service, location.make_lifespan)
    except ConfigurationError:
        return False
    return True
