"""The metrics of the whole store, read from the engine at a scrape and kept for a second.

Prometheus gets them from every server and health port. OpenTelemetry gets them from every server
and from the process that leads the maintenance.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Final

from trellis.core.durations import SECOND
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.projection import IsProjected
from trellis.engines.values import JobFilter
from trellis.errors import EngineError
from trellis.telemetry import current
from trellis.telemetry.metrics import (
    ENGINE_UP,
    JOBS,
    OLDEST,
    PROJECTION_BEHIND,
    PROJECTION_LAG,
    WORKERS,
)
from trellis.telemetry.registry import Snapshot, bounded

_STATES: Final = (State.PENDING, State.RETRY, State.ACTIVE, State.DEAD)
#: In seconds: how long values are kept, and how long the engine may take.
_KEPT: Final = 1.0
_LIMIT: Final = 5.0
#: How long an exporter waits; if the engine takes longer, it gets what was read before.
_PATIENCE: Final = 2.0
_DOWN: Final[Snapshot] = {ENGINE_UP.name: {(): 0}}


class StoreMetrics:
    """Reads the metrics of one store; scrapes at the same time share one reading."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        self._kept: Snapshot = _DOWN

    async def read(self, engine: Engine) -> Snapshot:
        """Return the values; if the engine does not answer, only that."""
        async with self._reading:
            if time.monotonic() - self._read_at >= _KEPT:
                try:
                    async with asyncio.timeout(_LIMIT):
                        self._kept = await _read(engine)
                except (EngineError, TimeoutError):
                    self._kept = _DOWN
                self._read_at = time.monotonic()
            return self._kept


@contextmanager
def exporting(engine: Engine, is_reporting: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Give the metrics of a store to exporters of this process while the block runs."""
    registry = current.registry
    if registry is None:
        yield
        return
    detach = registry.read_store_at_export(_Export(engine, is_reporting).read)
    try:
        yield
    finally:
        detach()


class _Export:
    """Reads the metrics of a store for exporters, which ask from threads of their own."""

    def __init__(self, engine: Engine, is_reporting: Callable[[], bool]) -> None:
        self._engine = engine
        self._is_reporting = is_reporting
        self._metrics = StoreMetrics()
        self._loop = asyncio.get_running_loop()
        self._latest: Snapshot = {}

    def read(self) -> Snapshot:
        """Return the values; what was read before while the loop of the engine cannot answer."""
        if not self._is_reporting() or self._loop.is_closed():
            return {}
        reading = asyncio.run_coroutine_threadsafe(self._refresh(), self._loop)
        if self._loop is not _running_loop():  # else the loop itself waits for this answer
            with suppress(TimeoutError, CancelledError):
                reading.result(_PATIENCE)
        return self._latest

    async def _refresh(self) -> None:
        self._latest = await self._metrics.read(self._engine)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _read(engine: Engine) -> Snapshot:
    # First: the reads below wait until the projection has caught up.
    lags = await engine.projection_lag() if isinstance(engine, IsProjected) else []
    counts = await engine.count(JobFilter(states=_STATES), "service", "queue", "type", "state")
    rates = await engine.rates(1)  # of these only what has waited longest is used
    due: dict[tuple[str, ...], float] = {
        (each.service, each.queue, each.type): max(0, rates.as_of - each.due_since) / SECOND
        for each in rates.lanes
        if each.due_since is not None
    }
    sessions = await engine.sessions()
    working = [each for each in sessions if each.is_worker and each.ended_at is None]
    found: Snapshot = {
        JOBS.name: bounded(dict(counts.combinations)),
        OLDEST.name: bounded(due),
        WORKERS.name: {(): sum(not each.lapsed for each in working)},
        ENGINE_UP.name: {(): 1},
    }
    if not lags:
        return found
    return {
        **found,
        PROJECTION_LAG.name: {(each.stream,): each.seconds for each in lags},
        PROJECTION_BEHIND.name: {(each.stream,): each.messages for each in lags},
    }
