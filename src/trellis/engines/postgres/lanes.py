"""Which lanes a claim reads, from where, and how far.

From the beginning, normally: so work that comes back to an old place is found at once. Only when
the beginning has become slow to read (somebody holds an old snapshot, so rows that are gone cannot
be cleared away) does a lane's scan start near the last claim; the beginning is then swept now and
then, paced by its own cost.

With many lanes not all are read to the full: a lane that had work lately gets its share and half as
much again, one that had none a few. The statement returns only what is surely next in order, so a
guess that was too small costs another round, never the order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from trellis.core.job import Definition, JobRecord
from trellis.engines.postgres.books import Books
from trellis.engines.values import Demand

#: Up to so many rows may be read for a claim without choosing between lanes.
_READ_ALL: Final = 1000
_A_FEW: Final = 8
#: A claim that takes this long, in seconds, has much to step over.
SLOW: Final = 0.05
#: Ids are handed out before their commit: a scan starts this far behind the last claim.
LAG: Final = 2000
_SWEEP_EVERY: Final = 1.0
_SWEEP_SHARE: Final = 20


@dataclass(slots=True)
class Plan:
    """One claim's reading list; columns, as the statement wants them."""

    book: Lanes
    lanes: list[int]
    priorities: list[int]
    demands: list[int]
    takes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    is_sweep: bool = True
    #: Whether every lane is read as far as it could matter.
    is_full: bool = True

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the claim, to know whether the beginning of the lanes is slow to read."""
        began = time.monotonic()
        yield
        self.book.learn(self, time.monotonic() - began)

    def note(self, records: Sequence[JobRecord]) -> bool:
        """Remember where work was found; tell whether there can be no more."""
        self.book.remember(records)
        if not records and not self.is_sweep:
            self.book.sweep_soon()
            return False
        return self.is_full


class Lanes:
    """What one claimer knows about its lanes."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._key: object = None
        self._demands: dict[tuple[str, str, str], int] = {}
        self._columns: tuple[list[int], list[int], list[int]] = ([], [], [])
        #: Jobs found per lane in the last claim that found any, and the last job claimed.
        self._found: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._by_cursor = False
        self._sweep_at = 0.0

    def plan(self, demands: Sequence[Demand], left: Sequence[int], limit: int) -> Plan:
        """Say what to read for these demands."""
        self._look_up(demands)
        lanes, priorities, positions = self._columns
        plan = Plan(self, lanes, priorities, positions)
        plan.takes = self._takes(left, limit)
        plan.is_full = len(lanes) <= 1 or all(
            take >= min(limit, left[place])
            for take, place in zip(plan.takes, positions, strict=True)
        )
        plan.is_sweep = not self._by_cursor or time.monotonic() >= self._sweep_at
        plan.starts = (
            [0] * len(lanes)
            if plan.is_sweep
            else [max(0, self._last.get(lane, 0) - LAG) for lane in lanes]
        )
        return plan

    def demand_of(self, definition: Definition) -> int:
        """Return which demand a job answers to."""
        return self._demands[definition.service, definition.queue, definition.type]

    def learn(self, plan: Plan, took: float) -> None:
        """Read from cursors while reading from the beginning is slow."""
        if plan.is_sweep:
            self._by_cursor = took > SLOW
            self._sweep_at = time.monotonic() + max(_SWEEP_EVERY, _SWEEP_SHARE * took)

    def remember(self, records: Sequence[JobRecord]) -> None:
        """Note where work was found."""
        if not records:
            return
        lanes = self._columns[0]
        if len(lanes) == 1:
            self._found = {lanes[0]: len(records)}
            self._last[lanes[0]] = records[-1].definition.row
            return
        numbers = self._books.lane_numbers
        found: dict[int, int] = {}
        for definition, _ in records:
            place = (definition.service, definition.queue, definition.type, definition.priority)
            lane = numbers[place]  # type: ignore[index] # a Lane is this tuple
            found[lane] = found.get(lane, 0) + 1
            self._last[lane] = definition.row
        self._found = found

    def sweep_soon(self) -> None:
        """Read from the beginning next time: nothing was found behind the cursors."""
        self._sweep_at = 0.0

    def _look_up(self, demands: Sequence[Demand]) -> None:
        key = (self._books.edition, [demand[:3] for demand in demands])
        if key == self._key:
            return
        self._key = key
        self._demands = {
            (demand.service, demand.queue, job_type): place
            for place, demand in enumerate(demands)
            for job_type in demand.types
        }
        wanted = [
            (number, lane.priority, self._demands[lane[:3]])
            for number, lane in self._books.lanes.items()
            if lane[:3] in self._demands
        ]
        lanes, priorities, positions = zip(*wanted, strict=True) if wanted else ((), (), ())
        self._columns = (list(lanes), list(priorities), list(positions))

    def _takes(self, left: Sequence[int], limit: int) -> list[int]:
        lanes, _, positions = self._columns
        found = self._found
        share = max(_A_FEW, limit * 3 // (2 * (len(found) or len(lanes) or 1)))
        read_all = len(lanes) * limit <= _READ_ALL
        return [
            min(limit, left[place], limit if read_all else share if lane in found else _A_FEW)
            for lane, place in zip(lanes, positions, strict=True)
        ]
