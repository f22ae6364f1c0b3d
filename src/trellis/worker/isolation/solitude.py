"""Suspects that no other process can run: with nothing else in this one.

Their handlers cannot be found by name (they were made inside a function), so a child is no place
for them. If this process dies again, there is exactly one attempt to blame.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from trellis.core.job import Fence
from trellis.worker.attempt import Attempt

#: How long others may take to end; a longer one is no reason to keep a whole process idle.
_PATIENCE: Final = 10.0
_TICK: Final = 0.01
_logger = logging.getLogger(__name__)


class Solitude:
    """Lets an attempt be alone among those that run here: from its wish on, none may begin."""

    def __init__(self, running: Mapping[Fence, Attempt], on_over: Callable[[], None]) -> None:
        self._running = running
        self._on_over = on_over
        #: Whether an attempt is alone, or waits to be.
        self.is_wanted = False

    @asynccontextmanager
    async def of(self, attempt: Attempt) -> AsyncIterator[None]:
        """Wait until nothing else runs, and keep it so."""
        self.is_wanted = True
        try:
            await self._until_alone(attempt)
            yield
        finally:
            self.is_wanted = False
            self._on_over()

    async def _until_alone(self, attempt: Attempt) -> None:
        gives_up = time.monotonic() + _PATIENCE
        while len(self._running) > 1:
            if time.monotonic() > gives_up:
                _logger.warning(
                    "Job %s should run alone, because a process died with it among others, but "
                    "other jobs take long; it now runs beside them.",
                    attempt.record.definition.id,
                )
                return
            await asyncio.sleep(_TICK)
