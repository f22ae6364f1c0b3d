"""Archiving: expired jobs are given to the archiver of their service before they are removed.

A worker that has archivers tries to take a lock per service; its holder archives for all workers.
Jobs are read page by page, given to the archiver, and only then removed, exactly those: an archiver
gets each job at least once. While it fails, nothing of its service is removed; it is tried again
after a pause that doubles, and the engine keeps since when it fails, for `doctor`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from typing import Final

from trellis.core.audit import By
from trellis.declaration.extensions import Archiver
from trellis.engines.archive import Archived
from trellis.engines.port import Engine
from trellis.errors import EngineError
from trellis.insight.archived import archived_jobs
from trellis.worker.handler_call import HandlerThreads
from trellis.worker.loop import TaskLoop
from trellis.worker.outage import OutageLog
from trellis.worker.session import SessionHolder

#: The lock of the worker that archives for a service.
LOCK: Final = "trellis/archive/"
_PAGE: Final = 100
#: Seconds between two looks for expired jobs, and the longest pause after failures.
_EVERY: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
_logger = logging.getLogger(__name__)


class Archiving(TaskLoop):
    """Archives expired jobs of the services of one worker process."""

    def __init__(
        self,
        engine: Engine,
        session: SessionHolder,
        archivers: Mapping[str, Archiver | None],
        outage: OutageLog,
        *,
        every: float = _EVERY,
    ) -> None:
        self._engine = engine
        self._session = session
        self._archivers = {name: each for name, each in archivers.items() if each is not None}
        self._outage = outage
        self._every = every
        self._threads: HandlerThreads | None = None
        self._failures: dict[str, int] = {}

    async def run(self) -> None:
        """Archive until cancelled."""
        if not self._archivers:
            return
        try:
            async with asyncio.TaskGroup() as services:
                for service in self._archivers:
                    services.create_task(self._repeat(service))
        finally:
            if self._threads is not None:
                self._threads.close()

    async def declare(self) -> None:
        """Store that these services archive, before this or another worker removes their jobs."""
        for service in self._archivers:
            await self._engine.set_archive(service, on=True, by=By("worker", "declared in code"))

    async def _repeat(self, service: str) -> None:
        while True:
            try:
                await self.archive(service)
            except EngineError as error:
                self._outage.failed("maintenance", error)
            else:
                self._outage.answered("maintenance")
            await asyncio.sleep(self._pause(service))

    def _pause(self, service: str) -> float:
        return min(self._every * 2.0 ** self._failures.get(service, 0), _LONGEST_PAUSE)

    async def archive(self, service: str) -> None:
        """Archive what has expired, page after page, if no other worker does."""
        if await self._engine.take_lock(LOCK + service, self._session.id) is not None:
            return
        while True:
            began = time.monotonic()
            records = await self._engine.archivable(service, _PAGE)
            if not records:
                return
            jobs = await archived_jobs(
                self._engine, records, secrets=self._archivers[service].secrets
            )
            error = await self._call(service, jobs)
            if error is not None:
                await self._note_failure(service, error)
                return
            if self._failures.pop(service, 0):
                await self._engine.note_archive(service, None)
                _logger.info("The archiver of %s works again.", service)
            taken = [Archived(each.definition.id, each.head.version) for each in records]
            await self._engine.remove_archived(taken)
            await asyncio.sleep(time.monotonic() - began)  # leave half of the time to other work

    async def _call(self, service: str, jobs: object) -> BaseException | None:
        """Give a page to the archiver; return what it raised."""
        function = self._archivers[service].function
        try:
            if inspect.iscoroutinefunction(function):
                await function(jobs)
            else:
                self._threads = self._threads or HandlerThreads(len(self._archivers))
                await self._threads.call(partial(function, jobs), copy_context())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - even SystemExit ends only this call
            return error
        return None

    async def _note_failure(self, service: str, error: BaseException) -> None:
        failures = self._failures[service] = self._failures.get(service, 0) + 1
        _logger.error(
            "The archiver of %s failed, for the %d. time in a row. None of its expired jobs is "
            "removed; it is tried again in %d s.",
            service, failures, self._pause(service), exc_info=error,
        )  # fmt: skip
        await self._engine.note_archive(service, f"{type(error).__name__}: {error}")
