"""The order of claims in the memory engine: ready jobs by lane, and the shares of tenants."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from trellis.core.durations import Instant, Micros
from trellis.core.fairness import Share, Turn, claim_order, give_ranks, tenant_of

if TYPE_CHECKING:
    from trellis.engines.memory.store import Entry, Lane

#: Service, queue and priority: within a line the tenants take turns.
Line: TypeAlias = tuple[str, str, int]


class Place(NamedTuple):
    """The place of a ready job: its lane, priority and rank."""

    lane: Lane
    priority: int
    rank: Instant
    row: int


class ReadyJobs:
    """Claimable jobs, best first; the reader skips jobs that are no longer ready."""

    def __init__(self, entries: dict[int, Entry]) -> None:
        self._entries = entries
        #: By lane and priority: rank and row of each job.
        self._heaps: dict[Lane, dict[int, list[tuple[Instant, int]]]] = {}
        #: The span after which a waiting job counts one priority higher.
        self.aging: Micros | None = None
        self._ends: dict[tuple[Line, str], Instant] = {}
        #: Of each share the jobs that got a rank, the last first: minus rank, and row.
        self._ranked: dict[tuple[Line, str], list[tuple[int, int]]] = {}

    def add(self, entry: Entry) -> None:
        """Add a job that became ready to its lane."""
        heaps = self._heaps.setdefault(entry.lane, {})
        heap = heaps.setdefault(entry.definition.priority, [])
        heapq.heappush(heap, (entry.place.rank, entry.definition.row))

    def in_order(self, lanes: list[Lane]) -> Iterator[Place]:
        """Yield and remove jobs of these lanes, in the order of claims.

        The caller may drop a lane from `lanes` while iterating; the rest of that lane stays.
        """
        while True:
            best = min(
                (
                    (claim_order(priority, heap[0][0], self.aging), heap[0][1], lane, priority)
                    for lane in lanes
                    for priority, heap in self._heaps.get(lane, {}).items()
                    if heap
                ),
                default=None,
            )
            if best is None:
                return
            *_, lane, priority = best
            yield Place(lane, priority, *heapq.heappop(self._heaps[lane][priority]))

    def order(self, entry: Entry) -> tuple[int, int, int]:
        """Return what the order of claims sorts a job by."""
        _, priority, rank, row = entry.place
        return *claim_order(priority, rank, self.aging), row

    # -- shares --------------------------------------------------------------------------------

    def give_ranks(self, entries: Sequence[Entry], now: Instant) -> None:
        """Give jobs of tenants that become due their ranks, in this order."""
        waiting = [entry for entry in entries if entry.needs_rank]
        if not waiting:
            return
        turns = [_turn(entry) for entry in waiting]
        heads = {turn.line: self._head(turn.line) for turn in turns}
        shares = {
            of: Share(self._ends[of], self._last(of))
            for of in {(turn.line, turn.tenant) for turn in turns} & self._ends.keys()
        }
        known = {line: head for line, head in heads.items() if head is not None}
        ranked = give_ranks(turns, known, shares, now)
        self._ends.update(ranked.ends)
        for entry, turn, rank in zip(waiting, turns, ranked.ranks, strict=True):
            entry.rank = rank
            jobs = self._ranked.setdefault((turn.line, turn.tenant), [])
            heapq.heappush(jobs, (-rank, entry.definition.row))

    def prune(self, now: Instant, limit: int) -> None:
        """Remove shares that ended before the virtual time of their line, the first ones."""
        over: list[tuple[Instant, str, Line]] = []
        for (line, tenant), end in self._ends.items():
            head = self._head(line)
            if end <= (now if head is None else head):
                over.append((end, tenant, line))
        for _, tenant, line in sorted(over)[:limit]:
            del self._ends[line, tenant]
            self._ranked.pop((line, tenant), None)

    def _head(self, line: Line) -> Instant | None:
        """Return the rank of the first claimable job of a line."""
        service, queue, priority = line
        firsts = (
            self._first(lane, priority)
            for lane in self._heaps
            if lane[:2] == (service, queue) and priority in self._heaps[lane]
        )
        return min((first for first in firsts if first is not None), default=None)

    def _first(self, lane: Lane, priority: int) -> Instant | None:
        heap = self._heaps[lane][priority]
        while heap:
            rank, row = heap[0]
            entry = self._entries.get(row)
            if entry is not None and entry.is_ready_at(Place(lane, priority, rank, row)):
                return rank
            heapq.heappop(heap)
        return None

    def _last(self, share: tuple[Line, str]) -> Instant | None:
        """Return the rank of the last waiting job of a share."""
        heap = self._ranked.get(share, [])
        while heap:
            rank, row = -heap[0][0], heap[0][1]
            entry = self._entries.get(row)
            if (
                entry is not None
                and entry.availability in {"ready", "waiting_for_slot"}
                and (entry.rank, entry.line) == (rank, share[0])
            ):
                return rank
            heapq.heappop(heap)
        return None


def _turn(entry: Entry) -> Turn[Line]:
    definition = entry.definition
    relations = definition.relations
    weight = None if relations is None else relations.weight
    return Turn(entry.line, tenant_of(relations) or "", weight, definition.key_hash is not None)
