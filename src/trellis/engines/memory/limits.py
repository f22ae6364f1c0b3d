"""Limits of the memory engine: settings, buckets, and ended attempts that may still run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import Fence
from trellis.core.lifecycle import Transition
from trellis.core.limits import (
    UNSPENT,
    Limit,
    LimitChange,
    LimitSetting,
    Scope,
    Spent,
    Use,
)
from trellis.engines.audit import By
from trellis.engines.clock import Clock
from trellis.engines.demand import Demand
from trellis.engines.hints import Hints
from trellis.engines.limits import Budget, LimitStatus, change_of, limited, scopes_of, status_of
from trellis.engines.memory.slots import Slots
from trellis.engines.memory.store import Lane, Store


class Lingering(NamedTuple):
    """An ended attempt whose handler may still run: until then (lease clock, in this boot)."""

    lane: Lane
    fence: Fence
    linger_until: int
    boot_id: str


class LimitTable:
    """All limits, how far their rates are used, and what lingers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.settings: dict[Scope, LimitSetting] = {}
        self.spent: dict[Scope, Spent] = {}
        self._lingering: list[Lingering] = []

    def linger(self, transition: Transition, lane: Lane, until: int) -> None:
        """Count an ended attempt while its handler may still run."""
        fence = transition.before.fence
        if fence is not None:
            boot_id = self._store.clock.boot_id()
            self._lingering.append(Lingering(lane, fence, until, boot_id))

    def end_lingering(self, is_over: Callable[[Lingering], bool]) -> int:
        """Stop counting ended attempts; return how many."""
        kept = [each for each in self._lingering if not is_over(each)]
        ended = len(self._lingering) - len(kept)
        self._lingering = kept
        return ended

    def budget(
        self, lanes: Iterable[Lane], demands: Sequence[Demand], now: Instant
    ) -> Budget | None:
        """Return what a claim of these lanes may take; None: nothing limits it."""
        in_force = limited(self.settings.values())
        wanted = {scope for lane in lanes for scope in scopes_of(lane)} & in_force.keys()
        if not wanted:
            return None
        settings = {scope: in_force[scope] for scope in wanted}
        return Budget(settings, {scope: self.use(scope) for scope in wanted}, demands, now)

    def use(self, scope: Scope) -> Use:
        """Return how far a limit is used."""
        store = self._store
        claimed = sum(
            entry.availability == "claimed" and scope in scopes_of(entry.lane)
            for entry in store.entries.values()
        )
        lingering = sum(
            scope in scopes_of(each.lane) and not store.is_past(each.linger_until, each.boot_id)
            for each in self._lingering
        )
        return Use(claimed + lingering, self.spent.get(scope, UNSPENT))


class LimitVerbs:
    """The part of the memory engine that is about limits."""

    _clock: Clock
    _lock: threading.RLock
    _store: Store
    _limits: LimitTable
    _slots: Slots
    _hints: Hints

    async def declare_limits(self, declared: Sequence[tuple[Scope, Limit]]) -> None:
        """Store the limits that the code declares."""
        with self._lock:
            settings = self._limits.settings
            for scope, limit in declared:
                before = settings.get(scope) or LimitSetting(scope)
                if before.declared != limit:
                    self._put_limit(before._replace(declared=limit))
        self._hints.publish(("ready",))

    async def change_limit(self, scope: Scope, change: LimitChange, by: By) -> LimitSetting:
        """Set parts of a limit, or let the declared one count again."""
        with self._lock:
            before = self._limits.settings.get(scope) or LimitSetting(scope)
            after = before.changed(change)
            self._put_limit(after)
            if (entry := change_of(before, after)) is not None:
                self._store.record(entry, by)
        self._hints.publish(("ready",))
        return after

    def _put_limit(self, setting: LimitSetting) -> None:
        self._limits.settings[setting.scope] = setting
        if setting.scope.kind == "key":  # jobs that wait by the old rate are looked at now
            self._slots.rates.wake_type(setting.scope)

    async def limits(self) -> list[LimitStatus]:
        """Return all limits."""
        with self._lock:
            now = self._clock.now()
            return [
                status_of(setting, self._limits.use(scope), now)
                for scope, setting in sorted(self._limits.settings.items())
            ]
