"""`claim` of the memory engine: by priority, due time and creation, within the limits."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence

from trellis.core.durations import Instant
from trellis.core.job import JobRecord, SessionId
from trellis.core.lifecycle import Transition
from trellis.core.limits import Rate
from trellis.engines.clock import Clock
from trellis.engines.demand import Demand
from trellis.engines.limits import Budget, next_token
from trellis.engines.memory.limits import LimitTable
from trellis.engines.memory.slots import Slots
from trellis.engines.memory.store import Entry, Lane, Store
from trellis.engines.values import Claimed


class ClaimVerb:
    """The part of the memory engine that claims."""

    _clock: Clock
    _lock: threading.RLock
    _store: Store
    _limits: LimitTable
    _slots: Slots

    @abstractmethod
    def _start(self, entries: Sequence[Entry], now: Instant) -> int:
        """Make due jobs claimable."""

    @abstractmethod
    def _write(self, entry: Entry, transition: Transition) -> None:
        """Write a transition that has passed its guards."""

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim due jobs."""
        with self._lock:
            now = self._clock.now()
            if self._store.is_over(session):
                return Claimed(now, ())
            wanted = is_open = self._store.open_lanes(demands)
            budget = self._limits.budget(wanted, demands, now)
            if budget is not None:
                wanted = {lane: index for lane, index in wanted.items() if budget.room(lane) != 0}
            self._start(self._store.startable_of(wanted, now, limit), now)
            taken = self._take(session, demands, wanted, limit, budget)
            if budget is None:
                return Claimed(now, tuple(taken))
            self._limits.spent.update(budget.spent())
            waiting = _waiting_lanes(self._store, now) & is_open.keys()
            return Claimed(now, tuple(taken), next_token(budget.token_times(), waiting))

    def _take(
        self,
        session: SessionId,
        demands: Sequence[Demand],
        wanted: dict[Lane, int],
        limit: int,
        budget: Budget | None,
    ) -> list[JobRecord]:
        now = self._clock.now()
        left = [demand.limit for demand in demands]
        lanes = list(wanted)
        passed_over: list[Entry] = []
        taken: list[JobRecord] = []
        started: dict[str, tuple[Rate, int]] = {}
        overdrawn: set[str] = set()
        for place in self._store.ready.in_order(lanes):
            lane = place.lane
            entry = self._store.entries.get(place.row)
            if entry is None or not entry.is_ready_at(place):
                continue
            is_used_up = budget is not None and budget.room(lane) == 0
            if len(taken) >= limit or left[wanted[lane]] <= 0 or is_used_up:
                passed_over.append(entry)
                lanes.remove(lane)
                continue
            key_hash = entry.definition.key_hash or ""
            of_key = started[key_hash][1] if key_hash in started else 0
            if not self._slots.rates.has_tokens(entry, of_key):
                overdrawn.add(key_hash)
                passed_over.append(entry)
                continue
            decision = None if entry.is_held else entry.decide_claim(session, now)
            if decision is None:
                passed_over.append(entry)
                continue
            rate = self._slots.rates.rate_of(entry) if key_hash else None
            if rate is not None:
                started[key_hash] = (rate, of_key + 1)
            left[wanted[lane]] -= 1
            if budget is not None:
                budget.take(lane)
            entry.put_in_force(demands[wanted[lane]].policy_of(entry.definition.type))
            self._write(entry, decision)
            taken.append(entry.record)
        for entry in passed_over:
            self._store.ready.add(entry)
        self._slots.rates.charge(started)
        for key_hash in overdrawn:
            self._slots.withdraw(key_hash)
        return taken


def _waiting_lanes(store: Store, now: Instant) -> set[Lane]:
    """Return the lanes that have claimable jobs, or jobs whose run time has come."""
    ready = (each for each in store.entries.values() if each.availability == "ready")
    return {each.lane for each in (*ready, *store.startable(now))}
