"""Asking the engine for work: as much as there is room for, when there may be some.

A hint or a full answer says that there may be more; without either the engine is asked once per
poll interval. One round trip serves all types. A claim under way is never abandoned: its answer
would be jobs that nobody runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from trellis.core.durations import SECOND, Micros
from trellis.core.job import JobRecord
from trellis.engines.port import Engine
from trellis.engines.values import Demand
from trellis.errors import EngineUnavailable
from trellis.worker.attempt import Attempt, HeldAttempts
from trellis.worker.clock import EngineTime, uptime
from trellis.worker.demand import Planner
from trellis.worker.executor import Executor
from trellis.worker.session import SessionHolder

_PATIENCE: Final = (0.1, 0.3, 1.0, 2.0)
_random = random.Random()  # noqa: S311 - jitter needs no cryptography
_logger = logging.getLogger(__name__)


class Fetcher:
    """Keeps the executor's line filled."""

    def __init__(
        self,
        engine: Engine,
        *,
        session: SessionHolder,
        executor: Executor,
        planner: Planner,
        attempts: HeldAttempts,
        engine_time: EngineTime,
        poll: Micros,
    ) -> None:
        self._engine = engine
        self._session = session
        self._executor = executor
        self._planner = planner
        self._attempts = attempts
        self._time = engine_time
        self._poll = poll / SECOND
        self._news = asyncio.Event()
        self._maybe_more = True
        self._stopping = False
        #: Set once all the jobs this process may run have ended.
        self.spent = asyncio.Event()
        #: When the claim under way was sent, by the monotonic clock; None when there is none.
        self.asking_since: float | None = None
        executor.on_hungry = self._news.set

    def nudge(self) -> None:
        """Say that there may be work."""
        self._maybe_more = True
        self._news.set()

    def stop(self) -> None:
        """Ask for nothing more; the claim under way is still awaited."""
        self._stopping = True
        self._news.set()

    async def listen(self) -> None:
        """Follow the engine's hints."""
        with suppress(EngineUnavailable):
            async for _ in self._engine.watch(("ready",)):
                self.nudge()

    async def run(self) -> None:
        """Fetch until stopped."""
        failures = 0
        while not self._stopping:
            if self._planner.is_spent:
                await self._executor.until_quiet()
                self.spent.set()
                return
            self._news.clear()
            plan = self._planner.next_claim() if self._maybe_more else None
            if plan is None:
                await self._wait()
                continue
            self._maybe_more = False
            demands, limit = plan
            try:
                jobs = await self._claim(demands, limit)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next claim may work
                if not failures:
                    _logger.warning("Cannot claim jobs now: %s", error)
                self._maybe_more = True
                await asyncio.sleep(_PATIENCE[min(failures, len(_PATIENCE) - 1)])
                failures += 1
            else:
                failures = 0
                if self._planner.is_full(demands, limit, jobs):
                    self._maybe_more = True

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._poll * _random.uniform(0.9, 1.0)):
                await self._news.wait()
        except TimeoutError:
            self._maybe_more = True

    async def _claim(self, demands: list[Demand], limit: int) -> Sequence[JobRecord]:
        self.asking_since = time.monotonic()
        sent = uptime()
        try:
            claimed = await self._engine.claim(self._session.id, demands, limit)
        finally:
            self.asking_since = None
        self._time.learn(claimed.now, sent)
        if claimed.jobs:
            self._executor.add(self._take(claimed.jobs))
        return claimed.jobs

    def _take(self, records: Sequence[JobRecord]) -> list[Attempt]:
        arrived, types, held = time.monotonic(), self._planner.types, self._attempts.held
        attempts = []
        for record in records:
            definition, head = record
            fence = head.fence
            if fence is None:
                raise RuntimeError(f"The engine handed out job {definition.id} without a fence.")
            kind = types[definition.service, definition.type]
            held[fence] = attempt = Attempt(record, fence, kind, arrived)
            attempts.append(attempt)
        return attempts
