"""Claiming jobs from the engine: as many as the executor can take, whenever there may be some.

A hint from the engine or a claim that returned its limit means that there may be more jobs; so does
the moment when a limit by rate lets the next job start. Otherwise, the engine is polled once per
poll interval. One round trip serves all types. A claim under
way is never abandoned: no worker would run the jobs that it returns.

`Planner` decides how many jobs of which types to claim next. Jobs are claimed into free slots. Only
types whose recent jobs ended within a tenth of a second are claimed ahead, at most two batches and
at most a tenth of a second's work, so that no job waits here while another worker is free. Where
other types are served too, claiming ahead pauses every tenth of a second until a slot is free, so
that the other types get a slot. Jobs of limited queues and types are claimed only into free slots
(`Demand.free`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from trellis.core.durations import SECOND, Micros
from trellis.core.job import JobRecord
from trellis.declaration.job_type import JobType
from trellis.engines.clock import uptime
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import Topic
from trellis.errors import EngineError
from trellis.worker.attempt import Attempt, HeldAttempts
from trellis.worker.executor import Executor
from trellis.worker.local_type import QUICK, LocalType
from trellis.worker.loop import TaskLoop
from trellis.worker.outage import OutageLog
from trellis.worker.session import EngineTime, SessionHolder
from trellis.worker.settler import Settler

BATCH: Final = 500
_LIMIT_AHEAD: Final = 2 * BATCH
_SHORTEST_MEAN: Final = 1e-6

#: Demands, and the most jobs that one claim may return for all of them together.
_Demands: TypeAlias = tuple[list[Demand], int]


class ClaimPlan(NamedTuple):
    """What to claim now, and how the executor queues what is claimed."""

    #: Empty if the executor can take no job.
    demands: list[Demand]
    limit: int
    #: More work is wanted as soon as this many attempts wait for a slot.
    refill_at: int
    #: Whether some types are not claimed ahead; their attempts go before the others.
    others_first: bool


class Planner:
    """Knows the types of this worker, and how many more attempts of each it can take."""

    def __init__(
        self,
        job_types: Iterable[JobType],
        executor: Executor,
        max_jobs: int | None = None,
        queues: Sequence[str] = (),
    ) -> None:
        self.types = {(each.service, each.name): LocalType(each) for each in job_types}
        self._executor = executor
        self._slots = executor.slots
        self._max_jobs = max_jobs
        #: When a slot was last free, by the monotonic clock.
        self._slot_was_free = 0.0
        #: Only jobs that wait in these queues; empty: in any queue.
        self._queues = tuple(queues)

    @property
    def has_reached_max_jobs(self) -> bool:
        """Whether as many jobs as this process may run have run or are running."""
        return self._max_jobs is not None and self._executor.begun >= self._max_jobs

    def plan_claim(self) -> ClaimPlan:
        """Plan the next claim."""
        quick = [local_type for local_type in self.types.values() if local_type.is_quick]
        ahead = self._jobs_ahead(quick)
        is_mixed = len(quick) < len(self.types)
        demands, limit = self._next_demands(quick, ahead, is_mixed=is_mixed)
        if self._max_jobs is not None:
            limit = min(limit, self._max_jobs - self._executor.begun - len(self._executor.waiting))
        return ClaimPlan(demands if limit > 0 else [], limit, ahead // 2, is_mixed)

    @staticmethod
    def is_full(plan: ClaimPlan, jobs: Sequence[JobRecord]) -> bool:
        """Return whether a claim brought as much as it could, so that there may be more."""
        if len(jobs) >= plan.limit:
            return True
        got = Counter((record.definition.service, record.definition.type) for record in jobs)
        return any(
            sum(got[demand.service, name] for name in demand.types) >= demand.limit
            for demand in plan.demands
        )

    def _jobs_ahead(self, quick: list[LocalType]) -> int:
        """Return how many jobs of the quick types may be claimed before a slot is free."""
        if not quick:
            return 0
        slowest = max(_SHORTEST_MEAN, *(local_type.mean for local_type in quick))
        return min(_LIMIT_AHEAD, int(self._slots * QUICK / slowest))

    def _next_demands(self, quick: list[LocalType], ahead: int, *, is_mixed: bool) -> _Demands:
        free = self._slots - self._executor.load
        now = time.monotonic()
        if free > 0:
            self._slot_was_free = now
            if is_mixed:
                return self._demands_for_slots(quick, free, ahead)
        elif is_mixed and now - self._slot_was_free > QUICK:
            return [], 0
        missing = free + ahead
        if free <= 0 and missing < min(BATCH, ahead // 2):
            return [], 0
        limit = max(min(missing, BATCH), free)
        return self._demands(quick, limit), limit

    def _demands_for_slots(self, quick: list[LocalType], free: int, ahead: int) -> _Demands:
        """Return demands for all types: the quick ones go ahead, the others share free slots."""
        others = [local_type for local_type in self.types.values() if not local_type.is_quick]
        shares = len(self._demands(others, free))
        if not ahead or free < shares:
            return self._demands(self.types.values(), free), free
        limit = min(free + ahead, BATCH)
        each = free // max(shares, 1)
        return [*self._demands(others, each), *self._demands(quick, limit)], limit

    def _demands(self, types: Iterable[LocalType], limit: int) -> list[Demand]:
        """Return demands for these types, each for at most `limit` jobs.

        Types without a limit of their own share one demand per service.
        """
        demands: list[Demand] = []
        together: dict[str, list[JobType]] = {}
        for local_type in types:
            job_type = local_type.job_type
            if local_type.limit is None:
                together.setdefault(job_type.service, []).append(job_type)
            elif capacity := local_type.capacity(self._slots):
                demands.append(self._demand([job_type], min(capacity, limit)))
        return [*demands, *(self._demand(each, limit) for each in together.values())]

    def _demand(self, job_types: Sequence[JobType], limit: int) -> Demand:
        return Demand(
            job_types[0].service,
            tuple(each.name for each in job_types),
            limit,
            self._queues,
            tuple(each.policy for each in job_types),
            max(0, self._slots - self._executor.load),
        )


_RETRY_PAUSES: Final = (0.1, 0.3, 1.0, 2.0)
#: Last jobs that end within this many seconds keep no slots free for long.
_LAST_JOBS_PATIENCE: Final = 1.0
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
        outage: OutageLog,
        settler: Settler,
    ) -> None:
        self._engine = engine
        self._settler = settler
        self._session = session
        self._executor = executor
        self._planner = planner
        self._attempts = attempts
        self._time = engine_time
        self._poll = poll / SECOND
        self._wakeup = wakeup
        self._outage = outage
        self._maybe_more = True
        self._finishing = False
        #: When a limit by rate lets the next job start, by the monotonic clock.
        self._token_at: float | None = None
        #: Set once as many jobs as this process may run have run.
        self.reached_max_jobs = asyncio.Event()
        #: Set when the last of these jobs leave slots free that a successor could use.
        self.slots_stand_still = asyncio.Event()
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
                await self._finish_last_jobs()
                return
            self._wakeup.clear()
            may_claim = self._maybe_more and not self._settler.is_behind
            plan = self._plan() if may_claim else None
            if plan is None:
                await self._wait_for_work()
                continue
            self._maybe_more = False
            began = time.monotonic()
            try:
                jobs = await self._claim(plan)
            except Exception as error:  # noqa: BLE001 - the next claim may succeed
                if isinstance(error, EngineError):
                    self._outage.failed("claims", error, began)
                elif not failures:
                    _logger.warning("Cannot claim jobs; will try again: %s", error)
                self._maybe_more = True
                await asyncio.sleep(_RETRY_PAUSES[min(failures, len(_RETRY_PAUSES) - 1)])
                failures += 1
            else:
                failures = 0
                self._outage.answered("claims")
                if self._planner.is_full(plan, jobs):
                    self._maybe_more = True

    async def _finish_last_jobs(self) -> None:
        """Wait for the last jobs that this process may run, or until `finish` is called."""
        self._executor.is_finishing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_JOBS_PATIENCE):
                await self._executor.until_idle()
        while not (self._finishing or self._executor.is_idle):
            if 2 * self._executor.load <= self._executor.slots:
                self.slots_stand_still.set()
            self._wakeup.clear()
            await self._wakeup.wait()  # a slot is free
        if self._executor.is_idle:
            self.reached_max_jobs.set()

    def _plan(self) -> ClaimPlan | None:
        """Plan a claim and prepare the executor for it; return None if it can take no job."""
        plan = self._planner.plan_claim()
        self._executor.look_ahead(plan.refill_at, others_first=plan.others_first)
        return plan if plan.demands else None

    async def _wait_for_work(self) -> None:
        limit = self._poll * _random.uniform(0.9, 1.0)
        if self._token_at is not None:
            limit = min(limit, max(0.0, self._token_at - time.monotonic()))
        try:
            async with asyncio.timeout(limit):
                await self._wakeup.wait()
        except TimeoutError:
            self._maybe_more = True
            self._token_at = None

    async def _claim(self, plan: ClaimPlan) -> Sequence[JobRecord]:
        self.claiming_since = time.monotonic()
        sent = uptime()
        try:
            claimed = await self._engine.claim(self._session.id, plan.demands, plan.limit)
        finally:
            self.claiming_since = None
        self._time.learn(claimed.now, sent)
        if claimed.next_at is None:
            self._token_at = None
        else:
            self._token_at = time.monotonic() + (claimed.next_at - claimed.now) / SECOND
        if claimed.jobs:
            self._executor.add(self._hold(claimed.jobs))
            await asyncio.sleep(0)  # their handlers start before the next claim is planned
        return claimed.jobs

    def _hold(self, records: Sequence[JobRecord]) -> list[Attempt]:
        arrived, types, held = time.monotonic(), self._planner.types, self._attempts.held
        attempts = []
        for record in records:
            definition, head = record
            fence = head.fence
            if fence is None:
                raise RuntimeError(f"The engine returned job {definition.id} without a fence.")
            local_type = types[definition.service, definition.type]
            held[fence] = attempt = Attempt(record, fence, local_type, arrived)
            attempts.append(attempt)
        return attempts


class HintListener(TaskLoop):
    """Follows the engine's hints, and calls what is to be done about each topic."""

    def __init__(self, engine: Engine, on_hint: Mapping[Topic, Callable[[], None]]) -> None:
        self._engine = engine
        self._on_hint = on_hint

    async def run(self) -> None:
        """Listen until cancelled; listen again after the connection was lost."""
        while True:
            with suppress(EngineError):
                async for topic in self._engine.watch(tuple(self._on_hint)):
                    self._on_hint[topic]()
            await asyncio.sleep(self.restart_pause)
