"""How much of what to claim next.

Jobs are claimed into free slots. Only types that have lately shown that they end within a tenth of
a second are claimed ahead, at most two batches and at most a tenth of a second's work, so no job
waits here while another worker is free. Where other types are served too, nothing is claimed ahead
before those had their chance at a free slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trellis.contract.declaration import JobType
from trellis.engines.values import Demand
from trellis.worker.executor import Executor
from trellis.worker.local_type import QUICK, LocalType

BATCH: Final = 200
_MOST_AHEAD: Final = 2 * BATCH
_LEAST_MEAN: Final = 1e-6


class Planner:
    """Knows the types of this worker and how much of each there is room for."""

    def __init__(self, job_types: Iterable[JobType], executor: Executor) -> None:
        self.types = {(each.service, each.name): LocalType(each) for each in job_types}
        self._executor = executor
        self._slots = executor.slots
        self._may_go_ahead = False
        self._groups: dict[tuple[str, str], list[LocalType]] = {}
        for kind in self.types.values():
            place = (kind.job_type.service, kind.job_type.queue)
            self._groups.setdefault(place, []).append(kind)

    def next_claim(self) -> tuple[list[Demand], int] | None:
        """Return the demands and the limit of the next claim; None if there is no room."""
        free = self._slots - self._executor.load
        quick = [kind for kind in self.types.values() if kind.is_quick]
        ahead = self._ahead(quick)
        self._executor.low_water = ahead // 2
        if quick and len(quick) == len(self.types):
            missing = free + ahead
            if free <= 0 and missing < min(BATCH, ahead // 2):
                return None
            return self._plan(quick, max(min(missing, BATCH), free))
        if free > 0:
            return self._plan(self.types.values(), free)
        if self._may_go_ahead and ahead:
            self._may_go_ahead = False
            return self._plan(quick, min(ahead, BATCH))
        return None

    def learn(self, *, full: bool) -> None:
        """Take note of an answer: a full one for all types allows the quick ones to go ahead."""
        self._may_go_ahead = full and self._executor.load <= self._slots

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
