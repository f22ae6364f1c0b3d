"""What a guardian answers on its health port: whether its worker processes work, and metrics.

The metrics are those of its worker processes, which send them once a second, its own, and those of
the store. Counters of processes that have ended are kept, so that no counter goes back.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus

from trellis.config import WorkerSettings
from trellis.core.durations import SECOND
from trellis.engines.port import Engine
from trellis.errors import EngineError
from trellis.telemetry import metrics as table
from trellis.telemetry.prometheus import CONTENT_TYPE, render
from trellis.telemetry.registry import Registry, Snapshot, merged, only_counters
from trellis.telemetry.store import StoreMetrics
from trellis.worker.guardian.health_port import Answer, Route, as_json
from trellis.worker.guardian.worker_process import WorkerProcess


class Health:
    """The health of one guardian and its processes."""

    def __init__(
        self,
        settings: WorkerSettings,
        processes: Collection[WorkerProcess],
        engine: Callable[[str], Awaitable[Engine]],
    ) -> None:
        self._lease = settings.lease / SECOND
        self._processes = processes
        self._engine = engine
        self._own = Registry()
        self._ended: Snapshot = {}
        self._store = StoreMetrics()

    @property
    def routes(self) -> dict[str, Route]:
        """The answers by path."""
        return {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}

    def add_end(self, process: WorkerProcess, *, was_asked: bool) -> None:
        """Keep the counters of a process that has ended."""
        self._ended = merged([self._ended, only_counters(process.metrics)])
        process.metrics = {}
        how = "stopped" if was_asked or process.finished is not None else "died"
        self._own.number(table.PROCESS_ENDS, how).value += 1

    async def _healthz(self) -> Answer:
        """Answer as long as the guardian works."""
        return as_json(HTTPStatus.OK, status="ok")

    async def _readyz(self) -> Answer:
        """Answer 200 while a worker process claims jobs and renews its lease."""
        working = self._working()
        if not working:
            return as_json(
                HTTPStatus.SERVICE_UNAVAILABLE, status="not ready",
                reason="No worker process claims jobs.",
            )  # fmt: skip
        now = time.monotonic()
        if all(now - each.status.lease_renewed > self._lease for each in working):
            return as_json(
                HTTPStatus.SERVICE_UNAVAILABLE, status="not ready",
                reason="No worker process could renew its lease: the engine does not answer.",
            )  # fmt: skip
        return as_json(HTTPStatus.OK, status="ready", processes=len(working))

    async def _metrics(self) -> Answer:
        working = self._working()
        self._own.number(table.PROCESSES).value = len(working)
        living = [each.metrics for each in self._processes]
        stored = await self._read_store(working[0].url) if working else {}
        snapshot = merged([self._own.snapshot(), self._ended, *living, stored])
        return Answer(HTTPStatus.OK, render(snapshot), CONTENT_TYPE)

    async def _read_store(self, url: str) -> Snapshot:
        try:
            engine = await self._engine(url)
        except EngineError:
            return {table.ENGINE_UP.name: {(): 0}}
        return await self._store.read(engine)

    def _working(self) -> list[WorkerProcess]:
        return [each for each in self._processes if each.working is not None and each.end is None]
