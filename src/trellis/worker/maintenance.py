"""Doing what the clock calls for: due jobs, lapsed workers, deadlines, retention.

Every worker does it, because every write is guarded by the job's version: two that see the same
thing do it once. A process judges others only after its own renewals have succeeded for one full
lease without a gap, so that an outage of the engine costs nobody a job.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from trellis import control
from trellis.core.agenda import overdue
from trellis.core.commands import Command, LoseLease
from trellis.core.job import JobRecord
from trellis.core.spans import SECOND, Micros
from trellis.engines.port import Engine
from trellis.errors import EngineUnavailable
from trellis.worker.lease import LeaseKeeper

_LIMIT: Final = 500
_PRUNE_EVERY: Final = 60.0
_MOST_PAGES: Final = 20
_random = random.Random()  # noqa: S311 - jitter needs no cryptography
_logger = logging.getLogger(__name__)


class Maintenance:
    """The upkeep loops of one worker process."""

    def __init__(
        self,
        engine: Engine,
        keeper: LeaseKeeper,
        on_promoted: Callable[[], None],
        *,
        sweep: Micros,
        poll: Micros,
    ) -> None:
        self._engine = engine
        self._keeper = keeper
        self._on_promoted = on_promoted
        self._sweep = sweep / SECOND
        self._poll = poll / SECOND / 2

    async def run(self) -> None:
        """Keep everything up until cancelled."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._forever(self._poll, self.promote))
            loops.create_task(self._forever(self._sweep, self.sweep))
            loops.create_task(self._forever(_PRUNE_EVERY, self._prune))

    async def _forever(self, every: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every * _random.uniform(0.8, 1.0))
            try:
                await work()
            except EngineUnavailable as error:
                _logger.info("Upkeep waits for the engine: %s", error)
            except Exception:
                _logger.exception("Upkeep failed and will be tried again")

    async def promote(self) -> None:
        """Make jobs claimable whose time has come."""
        if await self._engine.promote(_LIMIT):
            self._on_promoted()

    async def sweep(self) -> None:
        """Look for workers that have gone, what they left, and what is overdue."""
        if self._keeper.is_steady:
            due = await self._engine.due("sessions", _LIMIT)
            for session in due.sessions:
                await self._engine.reap(session)
        await self._take_back_lost()
        await self._do_overdue()

    async def _take_back_lost(self) -> None:
        due = await self._engine.due("lost", _LIMIT)
        asked: list[tuple[JobRecord, Command]] = [
            (job.record, LoseLease(job.record.head.fence, roll=_random.random()))
            for job in due.jobs
            if job.record.head.fence is not None
        ]
        await self._apply(asked, due.now)

    async def _do_overdue(self) -> None:
        due = await self._engine.due("jobs", _LIMIT)
        asked: list[tuple[JobRecord, Command]] = []
        for (definition, head), seen_at in due.jobs:
            command = overdue(definition, head, seen_at, due.now, _random.random())
            if command is not None:
                asked.append((JobRecord(definition, head), command))
        await self._apply(asked, due.now)

    async def _apply(self, asked: list[tuple[JobRecord, Command]], now: int) -> None:
        if asked:
            await control.apply_all(self._engine, asked, now)
            self._on_promoted()

    async def _prune(self) -> None:
        for _ in range(_MOST_PAGES):
            if await self._engine.prune(_LIMIT) < _LIMIT:
                return
