"""Reading the heads of running attempts: which were cancelled, which were ended otherwise.

Once a second this passes cancels on sooner than the next renewal does. And it tells apart, for a
renewal that only reports an attempt as lost, a forced cancel from every other end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.errors import EngineError, EngineUnavailable
from trellis.worker.attempt import Attempt, Stop
from trellis.worker.roster import Roster

_EVERY: Final = 1.0
_PAGE: Final = 500
#: A lost attempt is stopped at the latest after this long, whether its head could be read or not.
_PATIENCE: Final = 1.0


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
                await self._look(running)

    async def stop_lost(self, attempts: Sequence[Attempt]) -> None:
        """Stop attempts that are over in the engine; let those know that a cancel ended."""
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._look(attempts)
        for attempt in attempts:
            attempt.stop(Stop.LOST)

    async def _look(self, attempts: Sequence[Attempt]) -> None:
        for start in range(0, len(attempts), _PAGE):
            page = attempts[start : start + _PAGE]
            loaded = await self._engine.load([each.record.definition.id for each in page])
            for attempt, record in zip(page, loaded.records, strict=True):
                head = None if record is None else record.head
                if head is not None and (
                    head.asked_at is not None or head.state is State.CANCELLED
                ):
                    attempt.asked = True
                if head is None or head.fence != attempt.fence:
                    attempt.stop(Stop.LOST)
