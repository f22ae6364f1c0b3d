"""Archiving: expired jobs are given to the archiver of their service before they are removed.

A worker that has archivers tries to take a lock per service; its holder archives for all workers.
Jobs are read page by page, given to the archiver, and only then removed, exactly those: an archiver
gets each job at least once. While it fails, nothing of its service is removed; it is tried again
after a pause that doubles, and the engine keeps since when it fails, for `doctor`. A call that does
not return is reported in the same way: a thread cannot be stopped, so the worker waits on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final

from trellis.core.audit import By
from trellis.core.durations import SECOND, to_datetime
from trellis.declaration.extensions import Archiver
from trellis.engines.archive import ARCHIVE_LOCK, Archived
from trellis.engines.port import Engine
from trellis.errors import EngineError
from trellis.insight.archived import archived_jobs
from trellis.worker.handler_call import HandlerThreads
from trellis.worker.loop import TaskLoop
from trellis.worker.outage import OutageLog
from trellis.worker.session import SessionHolder

_PAGE: Final = 100
#: Seconds between two looks for expired jobs, and the longest pause after failures.
_EVERY: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
#: After so many failures in a row the pause grows no more.
_MOST_DOUBLINGS: Final = 10
#: Seconds after which a call that has not returned is reported.
_OVERDUE: Final = 600.0
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
        overdue: float = _OVERDUE,
    ) -> None:
        self._engine = engine
        self._session = session
        self._archivers = {name: each for name, each in archivers.items() if each is not None}
        self._outage = outage
        self._every = every
        self._overdue = overdue
        self._threads: HandlerThreads | None = None
        self._failures: dict[str, int] = {}
        #: Services whose archivers work, as the engine has it.
        self._working: set[str] = set()

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
        """Store that these services archive, before this or another worker removes their jobs.

        An archive that an operator has switched off stays off.
        """
        for service in self._archivers:
            await self._engine.declare_archive(service, By("worker", "declared in code"))
        for archive in await self._engine.archives() if self._archivers else ():
            if archive.service in self._archivers and not archive.is_on:
                _logger.warning(
                    "The archive of %s is switched off: its expired jobs are removed without being "
                    "archived. To archive them again: trellis archive on %s",
                    archive.service, archive.service,
                )  # fmt: skip

    async def _repeat(self, service: str) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.archive(service)
            except EngineError as error:
                self._outage.failed("maintenance", error, began)
            else:
                self._outage.answered("maintenance")
            await asyncio.sleep(self._pause(service))

    def _pause(self, service: str) -> float:
        doublings = min(self._failures.get(service, 0), _MOST_DOUBLINGS)
        return min(self._every * 2.0**doublings, _LONGEST_PAUSE)

    async def archive(self, service: str) -> None:
        """Archive what has expired, page after page, if no other worker does."""
        if await self._engine.take_lock(ARCHIVE_LOCK + service, self._session.id) is not None:
            return
        while True:
            began = time.monotonic()
            records = await self._engine.archivable(service, _PAGE)
            if not records:
                return
            jobs = await archived_jobs(
                self._engine, records, secrets=self._archivers[service].secrets
            )
            error = await self._watched(service, jobs)
            if error is not None:
                await self._note_failure(service, error)
                return
            await self._note_success(service)
            taken = [Archived(each.definition.id, each.head.version) for each in records]
            await self._engine.remove_archived(taken)
            await asyncio.sleep(time.monotonic() - began)  # leave half of the time to other work

    async def _watched(self, service: str, jobs: object) -> BaseException | None:
        """Give a page to the archiver; report a call that does not return, and wait on."""
        watch = asyncio.create_task(self._report_overdue(service))
        try:
            return await self._call(service, jobs)
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    async def _report_overdue(self, service: str) -> None:
        await asyncio.sleep(self._overdue)
        self._working.discard(service)
        with suppress(EngineError):
            called_at = to_datetime(await self._engine.now() - int(self._overdue * SECOND))
            text = f"it was called at {called_at:%Y-%m-%d %H:%M:%S} UTC and has not returned"
            _logger.error(
                "The archiver of %s: %s. None of its expired jobs is removed until it returns. "
                "Give the calls in it a time limit, and restart this worker.",
                service, text,
            )  # fmt: skip
            await self._engine.note_archive(service, text)

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

    async def _note_success(self, service: str) -> None:
        """Store that the archiver works, once: an earlier process may have stored that it fails."""
        if self._failures.pop(service, 0):
            _logger.info("The archiver of %s works again.", service)
        if service not in self._working:
            await self._engine.note_archive(service, None)
            self._working.add(service)

    async def _note_failure(self, service: str, error: BaseException) -> None:
        self._working.discard(service)
        failures = self._failures[service] = self._failures.get(service, 0) + 1
        _logger.error(
            "The archiver of %s failed (failures in a row: %d). None of its expired jobs is "
            "removed; it is tried again in %d s.",
            service, failures, self._pause(service), exc_info=error,
        )  # fmt: skip
        await self._engine.note_archive(service, f"{type(error).__name__}: {error}")
