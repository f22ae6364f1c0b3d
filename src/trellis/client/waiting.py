"""Waiting for jobs to end: all waiters of a loop share one look at the engine.

Hints make it quick and polling makes it sure; only the loaded head says that a job has ended. A
thousand waiters cost one query per look, not a thousand.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from trellis.client.news import News
from trellis.client.workers import missing_worker, nobody_works
from trellis.contract.declaration import JobType
from trellis.core.job import JobId, JobRecord
from trellis.core.states import LIVE
from trellis.engines.port import Engine
from trellis.errors import EngineClosed, EngineUnavailable, no_such_job

_SOON: Final = 0.05
_LATE: Final = 1.0
_PAGE: Final = 500
#: With a look at least once a second, whoever waits in vain is told so within five.
_PATIENCE: Final = 3.0
_logger = logging.getLogger(__name__)


class WaitingRoom:
    """Everybody on this loop who waits for the end of a job."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[JobId, list[asyncio.Future[JobRecord]]] = {}
        #: When each type was first waited for; None once it was looked into.
        self._first_asked: dict[JobType, float | None] = {}
        self._news = asyncio.Event()
        self._attendant: asyncio.Task[None] | None = None
        #: Hints for everybody on this loop who follows a job.
        self.news = News(engine)

    async def until_ended(self, job_id: JobId, job_type: JobType) -> JobRecord:
        """Return the job once it has ended."""
        future: asyncio.Future[JobRecord] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(future)
        self._first_asked.setdefault(job_type, time.monotonic())
        self._news.set()
        if self._attendant is None or self._attendant.done():
            self._attendant = asyncio.create_task(self._attend(), name="trellis-wait")
        try:
            return await future
        finally:
            self._leave(job_id, future)

    async def close(self) -> None:
        """Send everybody away."""
        self._dismiss(EngineClosed("The service was closed while a job was awaited."))
        await self.news.close()
        attendant, self._attendant = self._attendant, None
        if attendant is not None:
            attendant.cancel()
            with suppress(asyncio.CancelledError):
                await attendant

    def _leave(self, job_id: JobId, future: asyncio.Future[JobRecord]) -> None:
        futures = self._waiting.get(job_id, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._waiting.pop(job_id, None)

    async def _attend(self) -> None:
        listener = asyncio.create_task(self._listen(), name="trellis-wait-hints")
        pause = _SOON
        try:
            while self._waiting:
                self._news.clear()
                began = time.monotonic()
                pause = _SOON if await self._look() else min(pause * 1.5, _LATE)
                await self._mind_missing_workers()
                # At most half of the time goes into looking, however many wait.
                await asyncio.sleep(time.monotonic() - began)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._news.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            self._dismiss(error)
        finally:
            # Whoever comes from now on needs another attendant.
            if self._attendant is asyncio.current_task():
                self._attendant = None
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener

    async def _mind_missing_workers(self) -> None:
        """Say once, after a few seconds, if nobody is there to do the awaited work."""
        patience_began = time.monotonic() - _PATIENCE
        for job_type, asked in list(self._first_asked.items()):
            if asked is None or asked > patience_began:
                continue
            self._first_asked[job_type] = None
            with suppress(EngineUnavailable):
                if await nobody_works(self._engine, job_type):
                    _logger.warning(missing_worker(self._engine, job_type))

    async def _listen(self) -> None:
        with suppress(EngineUnavailable):
            async for _ in self._engine.watch(("settled",)):
                self._news.set()

    async def _look(self) -> bool:
        """Tell whether somebody's job has ended."""
        ids = list(self._waiting)
        found = False
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            try:
                records = (await self._engine.load(page)).records
            except EngineClosed:
                raise
            except EngineUnavailable:
                return False
            found = self._tell(zip(page, records, strict=True)) or found
        return found

    def _tell(self, seen: Iterable[tuple[JobId, JobRecord | None]]) -> bool:
        told = False
        for job_id, record in seen:
            if record is not None and record.head.state in LIVE:
                continue
            told = True
            for future in self._waiting.pop(job_id, ()):
                if future.done():
                    continue
                if record is None:
                    future.set_exception(no_such_job(job_id))
                else:
                    future.set_result(record)
        return told

    def _dismiss(self, error: Exception) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        self._waiting.clear()
