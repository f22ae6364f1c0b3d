"""Which lanes a claim reads, from where, and how far.

Normally a lane is read from the beginning, so that a job which was handed back and keeps its rank
is found at once. Only when the beginning has become slow to read (a transaction holds an old
snapshot, so deleted rows cannot be vacuumed) does a lane's scan start near the rank of the last
claim. The beginning is then swept at intervals that depend on the cost of a sweep. A claim is slow
if it takes at least 10 ms and twice as long as one near the last claim, twice in a row; an error
costs a second in which a returning job may wait.

With many lanes not all are read completely: a lane that had work recently gets its share and half
as much again, the others a few rows. The statement returns only jobs that are certainly next in
order, so an estimate that was too small costs another round, never the order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from trellis.core.durations import Instant, Micros
from trellis.core.fairness import claim_order
from trellis.core.job import Definition, JobRecord
from trellis.core.policy import Policy
from trellis.engines.demand import Demand, demanded
from trellis.engines.postgres.registry import Registry

#: Up to this many lanes and rows are read for a claim without choosing between lanes.
_READ_ALL: Final = (4, 1000)
#: Rows read of a lane that had no work recently: the least, and the most.
_A_FEW: Final = (3, 8)
#: Seconds that a claim takes on a server without load: for itself, and for each job it finds.
_A_CLAIM: Final = 0.001
_A_JOB: Final = 0.00002
#: A claim is slow from this many times the usual duration, and from this many seconds.
_SLOW: Final = 2.0
SLOW_FROM: Final = 0.01
#: Due times are given before their commit: a scan starts this far behind the last claim.
LAG: Final = 250_000
#: The next sweep comes after this many times what the last one took, and sooner while claims find
#: nothing; between these bounds, in seconds.
_SWEEP_SHARE: Final = 20
_IDLE_SHARE: Final = 4
_SWEEP_EVERY: Final = (1.0, 10.0)
#: A claim that finds nothing near the last claim sweeps at once if the last sweep took less.
_CHEAP_SWEEP: Final = 0.05


@dataclass(slots=True)
class Plan:
    """What one claim reads, as the columns of the statement."""

    planner: ClaimPlanner
    lanes: list[int]
    priorities: list[int]
    demands: list[int]
    #: The number of the policy that the worker declares for each lane.
    policies: list[int | None]
    #: How many of each demand are wanted, and in all.
    left: Sequence[int]
    limit: int
    takes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    is_sweep: bool = True
    #: Whether every lane is read as far as it could matter.
    is_full: bool = True
    #: Whether limits may keep the claim from jobs.
    is_limited: bool = False
    took: float = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the claim, to know whether the beginning of the lanes is slow to read."""
        began = time.monotonic()
        yield
        self.took = time.monotonic() - began

    def note(
        self, records: Sequence[JobRecord], ranks: Mapping[int, Instant], now: Instant
    ) -> bool:
        """Remember what was found, where and how fast; return whether there can be no more.

        `ranks` are those of jobs with tenants; the rank of another is its due time.
        """
        self.planner.remember(self, records, ranks)
        if not self.is_limited:  # it may have waited for others, and jobs may have been left
            self.planner.learn(self, len(records))
            self.planner.pass_over(self, records, ranks, now)
        return self.is_full and (self.is_sweep or bool(records))


class ClaimPlanner:
    """Plans the claims of one connection by what earlier claims found."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._key: tuple[int, object] | None = None
        self._demands: dict[tuple[str, str, str], int] = {}
        self._columns: tuple[list[int], list[int], list[int], list[int | None]] = ([], [], [], [])
        #: Jobs found per lane in the last claim that found any, and the rank of the last.
        self._found: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._by_cursor = False
        self._was_slow = False
        #: How many times longer than without load claims take that start near the last one.
        self._usual = 1.0
        self._swept_at = 0.0
        self._sweep_took = 0.0
        self._is_idle = False

    def plan(
        self, demands: Sequence[Demand], left: Sequence[int], limit: int, *, sweep: bool = False
    ) -> Plan:
        """Return what to read for these demands; with `sweep` from the beginning in any case."""
        self._look_up(demands)
        lanes, priorities, positions, policies = self._columns
        plan = Plan(self, lanes, priorities, positions, policies, left, limit)
        plan.takes = self._takes(left, limit)
        plan.is_full = len(lanes) <= 1 or all(
            take >= min(limit, left[position])
            for take, position in zip(plan.takes, positions, strict=True)
        )
        plan.is_sweep = sweep or not self._by_cursor or self._is_sweep_due()
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
        is_slow = strain > _SLOW * self._usual and plan.took >= SLOW_FROM
        # A single slow claim may be an accident.
        self._by_cursor = is_slow and (self._by_cursor or self._was_slow)
        self._was_slow = is_slow
        self._usual = min(self._usual, strain)
        self._swept_at, self._sweep_took = time.monotonic(), plan.took

    def needs_sweep(self, plan: Plan) -> bool:
        """Return whether a claim that found nothing must look at the beginning as well."""
        return not plan.is_sweep and (self._sweep_took < _CHEAP_SWEEP or self._is_sweep_due())

    def _is_sweep_due(self) -> bool:
        least, most = _SWEEP_EVERY
        share = _IDLE_SHARE if self._is_idle else _SWEEP_SHARE
        pause = min(most, max(least, share * self._sweep_took))
        return time.monotonic() >= self._swept_at + pause

    def remember(
        self, plan: Plan, records: Sequence[JobRecord], ranks: Mapping[int, Instant]
    ) -> None:
        """Record how many jobs each lane had, and the rank of the last of each."""
        if len(plan.lanes) == 1:
            found = {plan.lanes[0]: len(records)}
            if records:
                self._last[plan.lanes[0]] = rank_of(records[-1], ranks)
        else:
            found = self._sort_out(records, ranks)
        if records:
            self._found = found

    def pass_over(
        self,
        plan: Plan,
        records: Sequence[JobRecord],
        ranks: Mapping[int, Instant],
        now: Instant,
    ) -> None:
        """After a slow sweep: what comes before the last job taken is empty, in every lane.

        Only up to now, because the ranks of a tenant with many jobs are in the future, and other
        lanes get jobs before them.
        """
        if not (plan.is_sweep and self._by_cursor and self._last):
            return
        newest = min(max(self._last.values()), now)
        if len(records) < min((plan.limit, *plan.takes)):
            self._last.update(dict.fromkeys(plan.lanes, newest))
        elif records:
            last, definition = rank_of(records[-1], ranks), records[-1].definition
            aging = self._registry.aging
            given = Counter(self.demand_of(each.definition) for each in records)
            for lane, priority, position in zip(
                plan.lanes, plan.priorities, plan.demands, strict=True
            ):
                if given[position] >= plan.left[position]:
                    continue
                higher = priority - definition.priority
                if aging is not None:
                    self._last[lane] = min(last + higher * aging, newest)
                elif higher >= 0:
                    self._last[lane] = newest if higher else min(last, now)

    def _sort_out(
        self, records: Sequence[JobRecord], ranks: Mapping[int, Instant]
    ) -> dict[int, int]:
        """Count the jobs per lane, and record the rank of the last of each."""
        numbers = self._registry.lane_numbers
        found: dict[int, int] = {}
        for record in records:
            definition = record.definition
            key = (definition.service, definition.queue, definition.type, definition.priority)
            lane = numbers[key]  # type: ignore[index] # a Lane is equal to this tuple
            found[lane] = found.get(lane, 0) + 1
            self._last[lane] = rank_of(record, ranks)
        return found

    def _look_up(self, demands: Sequence[Demand]) -> None:
        key = (self._registry.edition, _without_limits(demands))
        if key == self._key:
            return
        self._key = key
        lanes = self._registry.lanes
        self._demands = demanded(demands, {lane[:3] for lane in lanes.values()})
        wanted = [
            (number, lane.priority, position, self._policy(demands[position], lane.type))
            for number, lane in lanes.items()
            if (position := self._demands.get(lane[:3])) is not None
        ]
        columns = [list(column) for column in zip(*wanted, strict=True)] or [[], [], [], []]
        self._columns = (columns[0], columns[1], columns[2], columns[3])

    def _policy(self, demand: Demand, job_type: str) -> int | None:
        policy = demand.policy_of(job_type)
        return None if policy is None else self._registry.policy_numbers[policy]

    def unknown_policies(self, demands: Sequence[Demand]) -> set[Policy]:
        """Return the declared policies that have no number yet."""
        if self._key is not None and self._key[1] == _without_limits(demands):
            return set()
        declared = {policy for demand in demands for policy in demand.policies}
        return declared - self._registry.policy_numbers.keys()

    def _takes(self, left: Sequence[int], limit: int) -> list[int]:
        lanes, _, positions, _ = self._columns
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


def rank_of(record: JobRecord, ranks: Mapping[int, Instant]) -> Instant:
    """Return the rank of a claimed job; without a tenant it is its due time."""
    return ranks.get(record.definition.row, record.head.run_at)


def order_of(
    record: JobRecord, ranks: Mapping[int, Instant], aging: Micros | None
) -> tuple[int, int, int]:
    """Return the place of a claimed job in the order of claims."""
    definition = record.definition
    return *claim_order(definition.priority, rank_of(record, ranks), aging), definition.row


def _without_limits(demands: Sequence[Demand]) -> list[object]:
    """Return what decides which lanes are read, and under which policies."""
    return [(each.service, each.types, each.queues, each.policies) for each in demands]
