"""Claiming jobs from the engine: as many as there is room for, whenever there may be some.

A hint from the engine or a claim that returned its limit means that there may be more jobs. Without
either, the engine is polled once per poll interval. One round trip serves all types. A claim under
way is never abandoned: no worker would run the jobs that it returns.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from trellis.core.durations import SECOND, Micros
from trellis.core.job import JobRecord
from trellis.engines.port import Engine
from trellis.errors import EngineUnavailable
from trellis.worker.attempt import Attempt, HeldAttempts
from trellis.worker.clock import EngineTime, uptime
from trellis.worker.demand import ClaimPlan, Planner
from trellis.worker.executor import Executor
from trellis.worker.loop import TaskLoop
from trellis.worker.session import SessionHolder

_RETRY_PAUSES: Final = (0.1, 0.3, 1.0, 2.0)
_random = random.Random()  # noqa: S311 - jitter needs no cryptography
_logger = logging.getLogger(__name__)


class Fetcher(TaskLoop):
    """Keeps the executor supplied with attempts."""

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
        wakeup: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._session = session
        self._executor = executor
        self._planner = planner
        self._attempts = attempts
        self._time = engine_time
        self._poll = poll / SECOND
        self._wakeup = wakeup
        self._maybe_more = True
        self._finishing = False
        #: Set once as many jobs as this process may run have run.
        self.reached_max_jobs = asyncio.Event()
        #: When the claim under way was sent, by the monotonic clock; None when there is none.
        self.claiming_since: float | None = None

    def nudge(self) -> None:
        """Look for jobs soon: there may be some."""
        self._maybe_more = True
        self._wakeup.set()

    async def finish(self, limit: float | None = None) -> None:
        """Claim no more; wait for the claim under way, at most `limit` seconds."""
        self._finishing = True
        self._wakeup.set()
        await self.wait(limit)

    async def run(self) -> None:
        """Claim until `finish` is called or as many jobs have run as may run."""
        failures = 0
        while not self._finishing:
            if self._planner.has_reached_max_jobs:
                await self._executor.until_idle()
                self.reached_max_jobs.set()
                return
            self._wakeup.clear()
            plan = self._plan() if self._maybe_more else None
            if plan is None:
                await self._wait_for_work()
                continue
            self._maybe_more = False
            try:
                jobs = await self._claim(plan)
            except Exception as error:  # noqa: BLE001 - the next claim may succeed
                if not failures:
                    _logger.warning("Cannot claim jobs; will try again: %s", error)
                self._maybe_more = True
                await asyncio.sleep(_RETRY_PAUSES[min(failures, len(_RETRY_PAUSES) - 1)])
                failures += 1
            else:
                failures = 0
                if self._planner.is_full(plan, jobs):
                    self._maybe_more = True

    def _plan(self) -> ClaimPlan | None:
        """Plan a claim and prepare the executor for it; return None if there is no room."""
        plan = self._planner.plan_claim()
        self._executor.look_ahead(plan.refill_at, others_first=plan.others_first)
        return plan if plan.demands else None

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(self._poll * _random.uniform(0.9, 1.0)):
                await self._wakeup.wait()
        except TimeoutError:
            self._maybe_more = True

    async def _claim(self, plan: ClaimPlan) -> Sequence[JobRecord]:
        self.claiming_since = time.monotonic()
        sent = uptime()
        try:
            claimed = await self._engine.claim(self._session.id, plan.demands, plan.limit)
        finally:
            self.claiming_since = None
        self._time.learn(claimed.now, sent)
        if claimed.jobs:
            self._executor.add(self._hold(claimed.jobs))
        return claimed.jobs

    def _hold(self, records: Sequence[JobRecord]) -> list[Attempt]:
        arrived, types, held = time.monotonic(), self._planner.types, self._attempts.held
        attempts = []
        for record in records:
            definition, head = record
            fence = head.fence
            if fence is None:
                raise RuntimeError(f"The engine returned job {definition.id} without a fence.")
            kind = types[definition.service, definition.type]
            held[fence] = attempt = Attempt(record, fence, kind, arrived)
            attempts.append(attempt)
        return attempts


class HintListener(TaskLoop):
    """Follows the engine's hints that jobs are ready."""

    def __init__(self, engine: Engine, on_hint: Callable[[], None]) -> None:
        self._engine = engine
        self._on_hint = on_hint

    async def run(self) -> None:
        """Listen until cancelled; listen again after the connection was lost."""
        while True:
            with suppress(EngineUnavailable):
                async for _ in self._engine.watch(("ready",)):
                    self._on_hint()
            await asyncio.sleep(self.restart_pause)
