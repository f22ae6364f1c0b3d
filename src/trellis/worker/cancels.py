"""Passing cancels on to long-running handlers sooner than the next renewal would."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from trellis.engines.port import Engine
from trellis.errors import EngineUnavailable
from trellis.worker.attempt import Attempt, Stop
from trellis.worker.roster import Roster

_EVERY: Final = 1.0
_PAGE: Final = 500


class CancelWatch:
    """Looks once a second at the heads of attempts that have been running for a second."""

    def __init__(self, engine: Engine, roster: Roster) -> None:
        self._engine = engine
        self._roster = roster

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_EVERY)
            begun_before = time.monotonic() - _EVERY
            running = [
                attempt
                for attempt in self._roster.running.values()
                if attempt.began < begun_before and attempt.stop_reason is None
            ]
            with suppress(EngineUnavailable):
                for start in range(0, len(running), _PAGE):
                    await self._look(running[start : start + _PAGE])

    async def _look(self, attempts: list[Attempt]) -> None:
        ids = [attempt.record.definition.id for attempt in attempts]
        loaded = await self._engine.load(ids)
        for attempt, record in zip(attempts, loaded.records, strict=True):
            if record is None or record.head.fence != attempt.fence:
                attempt.stop(Stop.LOST)
            elif record.head.asked_at is not None:
                attempt.asked = True
