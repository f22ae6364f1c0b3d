"""How much of what to claim next.

Jobs are claimed into free slots. Only types that have lately shown that they end within a tenth of
a second are claimed ahead, at most two batches and at most a tenth of a second's work, so no job
waits here while another worker is free. Where other types are served too, going ahead stops every
tenth of a second until a slot is free, so that those get their chance.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from trellis.core.job import JobRecord
from trellis.declaration.job_type import JobType
from trellis.engines.values import Demand
from trellis.worker.executor import Executor
from trellis.worker.local_type import QUICK, LocalType

BATCH: Final = 500
_MOST_AHEAD: Final = 2 * BATCH
_LEAST_MEAN: Final = 1e-6


class Planner:
    """Knows the types of this worker and how much of each there is room for."""

    def __init__(
        self, job_types: Iterable[JobType], executor: Executor, most: int | None = None
    ) -> None:
        self.types = {(each.service, each.name): LocalType(each) for each in job_types}
        self._executor = executor
        self._slots = executor.slots
        #: How many jobs this process may run in all; None: any number.
        self._most = most
        self._last_chance = 0.0
        self._groups: dict[tuple[str, str], list[LocalType]] = {}
        for kind in self.types.values():
            place = (kind.job_type.service, kind.job_type.queue)
            self._groups.setdefault(place, []).append(kind)

    @property
    def is_spent(self) -> bool:
        """Whether this process has run, or is running, all the jobs it may."""
        return self._most is not None and self._executor.begun >= self._most

    def next_claim(self) -> tuple[list[Demand], int] | None:
        """Return the demands and the limit of the next claim; None if there is no room."""
        plan = self._next_claim()
        if plan is None or self._most is None:
            return plan
        left = self._most - self._executor.begun - len(self._executor.line)
        return (plan[0], min(plan[1], left)) if left > 0 else None

    def _next_claim(self) -> tuple[list[Demand], int] | None:
        free = self._slots - self._executor.load
        quick = [kind for kind in self.types.values() if kind.is_quick]
        ahead = self._ahead(quick)
        self._executor.low_water = ahead // 2
        is_mixed = len(quick) < len(self.types)
        self._executor.others_first = is_mixed
        now = time.monotonic()
        if free > 0:
            self._last_chance = now
            if is_mixed:
                return self._into_slots(quick, free, ahead)
        elif is_mixed and now - self._last_chance > QUICK:
            return None
        missing = free + ahead
        if free <= 0 and missing < min(BATCH, ahead // 2):
            return None
        return self._plan(quick, max(min(missing, BATCH), free))

    def is_full(self, demands: Sequence[Demand], limit: int, jobs: Sequence[JobRecord]) -> bool:
        """Tell whether a claim brought so much that there may be more."""
        if len(jobs) >= limit:
            return True
        got = Counter((record.definition.service, record.definition.type) for record in jobs)
        return any(
            sum(got[demand.service, name] for name in demand.types) >= demand.limit
            for demand in demands
        )

    def _into_slots(
        self, quick: list[LocalType], free: int, ahead: int
    ) -> tuple[list[Demand], int] | None:
        """Claim for all types: the others share the free slots, the quick ones go ahead."""
        others = [kind for kind in self.types.values() if not kind.is_quick]
        shares = len({(kind.job_type.service, kind.job_type.queue) for kind in others})
        if not ahead or free < shares:
            return self._plan(self.types.values(), free)
        limit = min(free + ahead, BATCH)
        for_others = self._plan(others, free // shares)
        for_quick = self._plan(quick, limit)
        demands = [*(for_others or ((), 0))[0], *(for_quick or ((), 0))[0]]
        return (demands, limit) if demands else None

    def _ahead(self, quick: list[LocalType]) -> int:
        if not quick:
            return 0
        slowest = max(_LEAST_MEAN, *(kind.mean for kind in quick))
        return min(_MOST_AHEAD, int(self._slots * QUICK / slowest))

    def _plan(self, kinds: Iterable[LocalType], limit: int) -> tuple[list[Demand], int] | None:
        wanted = {id(kind) for kind in kinds}
        demands: list[Demand] = []
        for (service, queue), members in self._groups.items():
            together = []
            for kind in members:
                if id(kind) not in wanted:
                    continue
                if kind.job_type.concurrency is None:
                    together.append(kind.job_type.name)
                elif room := kind.room(self._slots):
                    names = (kind.job_type.name,)
                    demands.append(Demand(service, queue, names, min(room, limit)))
            if together:
                demands.append(Demand(service, queue, tuple(together), limit))
        return (demands, limit) if demands and limit > 0 else None
