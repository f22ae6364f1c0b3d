"""Which lanes a claim reads, from where, and how far.

Normally a lane is read from the beginning, so that a job which returns to an old position is found
at once. Only when the beginning has become slow to read (a transaction holds an old snapshot, so
deleted rows cannot be vacuumed) does a lane's scan start near the last claim. The beginning is then
swept at intervals that depend on the cost of a sweep. A claim is slow if it takes twice as long as
one near the last claim, twice in a row; an error costs a second in which a returning job may wait.

With many lanes not all are read completely: a lane that had work recently gets its share and half
as much again, the others a few rows. The statement returns only jobs that are certainly next in
order, so an estimate that was too small costs another round, never the order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from trellis.core.job import Definition, JobRecord
from trellis.engines.postgres.registry import Registry
from trellis.engines.values import Demand

#: Up to this many lanes and rows are read for a claim without choosing between lanes.
_READ_ALL: Final = (4, 1000)
#: Rows read of a lane that had no work recently: the least, and the most.
_A_FEW: Final = (3, 8)
#: Seconds that a claim takes on a server without load: for itself, and for each job it finds.
_A_CLAIM: Final = 0.001
_A_JOB: Final = 0.00002
#: A claim is slow from this many times the usual duration.
_SLOW: Final = 2.0
#: Numbers are given before their commit: a scan starts this far behind the last claim.
LAG: Final = 2000
#: The next sweep comes after this many times what the last one took, and sooner while claims find
#: nothing; between these bounds, in seconds.
_SWEEP_SHARE: Final = 20
_IDLE_SHARE: Final = 4
_SWEEP_EVERY: Final = (1.0, 10.0)


@dataclass(slots=True)
class Plan:
    """What one claim reads, as the columns of the statement."""

    planner: ClaimPlanner
    lanes: list[int]
    priorities: list[int]
    demands: list[int]
    #: How many of each demand are wanted, and in all.
    left: Sequence[int]
    limit: int
    takes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    is_sweep: bool = True
    #: Whether every lane is read as far as it could matter.
    is_full: bool = True
    took: float = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the claim, to know whether the beginning of the lanes is slow to read."""
        began = time.monotonic()
        yield
        self.took = time.monotonic() - began

    def note(self, records: Sequence[JobRecord]) -> bool:
        """Remember what was found, where and how fast; return whether there can be no more."""
        self.planner.remember(self, records)
        self.planner.learn(self, len(records))
        self.planner.pass_over(self, records)
        return self.is_full and (self.is_sweep or bool(records))


class ClaimPlanner:
    """Plans the claims of one connection by what earlier claims found."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._key: object = None
        self._demands: dict[tuple[str, str, str], int] = {}
        self._columns: tuple[list[int], list[int], list[int]] = ([], [], [])
        #: Jobs found per lane in the last claim that found any, and the last job claimed.
        self._found: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._by_cursor = False
        self._was_slow = False
        #: How many times longer than without load claims take that start near the last one.
        self._usual = 1.0
        self._swept_at = 0.0
        self._sweep_took = 0.0
        self._is_idle = False

    def plan(self, demands: Sequence[Demand], left: Sequence[int], limit: int) -> Plan:
        """Return what to read for these demands."""
        self._look_up(demands)
        lanes, priorities, positions = self._columns
        plan = Plan(self, lanes, priorities, positions, left, limit)
        plan.takes = self._takes(left, limit)
        plan.is_full = len(lanes) <= 1 or all(
            take >= min(limit, left[position])
            for take, position in zip(plan.takes, positions, strict=True)
        )
        plan.is_sweep = not self._by_cursor or self._is_sweep_due()
        plan.starts = (
            [0] * len(lanes)
            if plan.is_sweep
            else [max(0, self._last.get(lane, 0) - LAG) for lane in lanes]
        )
        return plan

    def demand_of(self, definition: Definition) -> int:
        """Return the demand that a job meets."""
        return self._demands[definition.service, definition.queue, definition.type]

    def learn(self, plan: Plan, found: int) -> None:
        """Read from cursors while reading from the beginning is slow."""
        strain = max(1.0, plan.took / (_A_CLAIM + found * _A_JOB))
        self._is_idle = not found
        if not plan.is_sweep:
            self._usual += (strain - self._usual) / 8
            return
        is_slow = strain > _SLOW * self._usual
        # A single slow claim may be an accident.
        self._by_cursor = is_slow and (self._by_cursor or self._was_slow)
        self._was_slow = is_slow
        self._usual = min(self._usual, strain)
        self._swept_at, self._sweep_took = time.monotonic(), plan.took

    def _is_sweep_due(self) -> bool:
        least, most = _SWEEP_EVERY
        share = _IDLE_SHARE if self._is_idle else _SWEEP_SHARE
        pause = min(most, max(least, share * self._sweep_took))
        return time.monotonic() >= self._swept_at + pause

    def remember(self, plan: Plan, records: Sequence[JobRecord]) -> None:
        """Record how many jobs each lane had, and the last of each."""
        if len(plan.lanes) == 1:
            found = {plan.lanes[0]: len(records)}
            if records:
                self._last[plan.lanes[0]] = records[-1].definition.row
        else:
            found = self._sort_out(records)
        if records:
            self._found = found

    def pass_over(self, plan: Plan, records: Sequence[JobRecord]) -> None:
        """After a slow sweep: what comes before the last job taken is empty, in every lane."""
        if not (plan.is_sweep and self._by_cursor and self._last):
            return
        newest = max(self._last.values())
        if len(records) < min((plan.limit, *plan.takes)):
            self._last.update(dict.fromkeys(plan.lanes, newest))
        elif records:
            last = records[-1].definition
            given = Counter(self.demand_of(definition) for definition, _ in records)
            for lane, priority, position in zip(
                plan.lanes, plan.priorities, plan.demands, strict=True
            ):
                if given[position] < plan.left[position] and priority >= last.priority:
                    self._last[lane] = newest if priority > last.priority else last.row

    def _sort_out(self, records: Sequence[JobRecord]) -> dict[int, int]:
        """Count the jobs per lane, and record the last of each."""
        numbers = self._registry.lane_numbers
        found: dict[int, int] = {}
        for definition, _ in records:
            key = (definition.service, definition.queue, definition.type, definition.priority)
            lane = numbers[key]  # type: ignore[index] # a Lane is equal to this tuple
            found[lane] = found.get(lane, 0) + 1
            self._last[lane] = definition.row
        return found

    def _look_up(self, demands: Sequence[Demand]) -> None:
        key = (self._registry.edition, [demand[:3] for demand in demands])
        if key == self._key:
            return
        self._key = key
        self._demands = {
            (demand.service, demand.queue, job_type): position
            for position, demand in enumerate(demands)
            for job_type in demand.types
        }
        wanted = [
            (number, lane.priority, self._demands[lane[:3]])
            for number, lane in self._registry.lanes.items()
            if lane[:3] in self._demands
        ]
        lanes, priorities, positions = zip(*wanted, strict=True) if wanted else ((), (), ())
        self._columns = (list(lanes), list(priorities), list(positions))

    def _takes(self, left: Sequence[int], limit: int) -> list[int]:
        lanes, _, positions = self._columns
        found = self._found
        most_lanes, most_rows = _READ_ALL
        read_all = len(lanes) <= most_lanes and len(lanes) * limit <= most_rows
        least, most = _A_FEW
        few = min(most, max(least, 2 * limit // (len(lanes) or 1)))
        share = max(few, limit * 3 // (2 * (len(found) or len(lanes) or 1)))
        return [
            min(limit, left[position], limit if read_all else share if lane in found else few)
            for lane, position in zip(lanes, positions, strict=True)
        ]
