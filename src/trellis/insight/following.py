"""Following jobs: wait for their end, and read events and log lines as they are written.

A hint from the engine makes it fast, and polling at growing intervals makes it reliable; a follower
acts only on what it has loaded. All followers of an event loop share one watch of the engine, and
a thousand waiters cost one query per poll. Used by references, operators, readers of the feed and
the command line.

While the engine cannot be reached, the outage is logged once, the polling continues, and the
follower resumes where it stopped when the engine answers. Only a closed engine ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final, Generic, NamedTuple, TypeVar

from trellis.core.events import Event
from trellis.core.job import JobId, JobRecord
from trellis.core.states import LIVE
from trellis.declaration.job_type import JobType
from trellis.engines.port import Engine
from trellis.engines.values import LogEntry, Topic
from trellis.errors import EngineClosed, EngineError, EngineUnavailable, OutcomeUnknown, no_such_job
from trellis.insight.views import JobEvent, JobLogLine, job_event, job_log_line
from trellis.insight.worker_views import worker_view

T = TypeVar("T")
V = TypeVar("V")

#: Seconds between two looks: few after news, and more with every look that finds none.
_SHORTEST: Final = 0.05
_LONGEST: Final = 1.0
_GROWTH: Final = 1.5
#: Jobs in one query of waiters; log lines in one query.
_JOBS: Final = 500
_LINES: Final = 1000
#: With a look at least once a second, a missing worker is reported within five seconds.
_PATIENCE: Final = 3.0
#: What reads raise while the engine is away, or loses the connection during a call.
_OUTAGE: Final = (EngineUnavailable, OutcomeUnknown)
_logger = logging.getLogger(__name__)

#: Returns a sentence about how to start a worker for a type.
WorkerHint = Callable[[Engine, JobType], str]


async def has_worker(engine: Engine, job_type: JobType) -> bool:
    """Return whether a live worker runs this job type."""
    name, now = f"{job_type.service}/{job_type.name}", await engine.now()
    workers = [worker_view(each, now) for each in await engine.sessions()]
    return any(name in each.types for each in workers if each.is_heard_of)


class _Page(NamedTuple, Generic[T]):
    """Some entries of a journal or log, and where the next page begins."""

    entries: Sequence[T]
    seen: int
    is_last: bool


class Look(NamedTuple, Generic[T]):
    """What one look found."""

    entries: Sequence[T]
    #: There was nothing more at that moment.
    is_last: bool
    #: There will never be more.
    is_over: bool = False


class Follower:
    """Follows jobs of one engine for everything on one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch = _Watch(engine, ("settled",))
        #: For the feed: new jobs are announced as ready.
        self._watch_all = _Watch(engine, ("ready", "settled"))
        self._waiting: dict[JobId, list[asyncio.Future[JobRecord]]] = {}
        #: When each type was first awaited, and how to start a worker for it; None once reported.
        self._awaited: dict[JobType, tuple[float, WorkerHint] | None] = {}
        self._woken = asyncio.Event()
        self._waiter: asyncio.Task[None] | None = None
        self._is_unreachable = False

    async def until_ended(
        self, job_id: JobId, job_type: JobType | None = None, hint: WorkerHint | None = None
    ) -> JobRecord:
        """Return the job once it has ended; raise `JobNotFound` if there is none.

        With a type and a hint, the hint is logged after a few seconds if no worker runs the type.
        """
        future: asyncio.Future[JobRecord] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(future)
        if hint is not None and job_type is not None and job_type not in self._awaited:
            self._awaited[job_type] = (time.monotonic(), hint)
        self._woken.set()
        if self._waiter is None or self._waiter.done():
            self._waiter = asyncio.create_task(self._wait_for_all(), name="trellis-wait")
        try:
            return await future
        finally:
            self._forget(job_id, future)

    def events(self, job_id: JobId, *, follow: bool = False) -> AsyncGenerator[JobEvent, None]:
        """Yield the journal, each event once and in order; with `follow`, until the job ends."""

        async def read(seen: int) -> _Page[Event]:
            journal = await self._engine.journal(job_id)
            return _Page(journal[seen:], len(journal), is_last=True)

        return self._entries(job_id, read, job_event, follow=follow)

    def logs(self, job_id: JobId, *, follow: bool = False) -> AsyncGenerator[JobLogLine, None]:
        """Yield the log, each line once and in order; with `follow`, until the job ends."""

        async def read(seen: int) -> _Page[LogEntry]:
            lines = await self._engine.logs(job_id, seen, _LINES)
            after = lines[-1].number if lines else seen
            return _Page(lines, after, is_last=len(lines) < _LINES)

        return self._entries(job_id, read, job_log_line, follow=follow)

    async def close(self) -> None:
        """End every wait with `EngineClosed`, and the watch."""
        self._raise_for_all(EngineClosed("The engine was closed while a job was awaited."))
        await self._watch.close()
        await self._watch_all.close()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.cancel()
            with suppress(asyncio.CancelledError):
                await waiter

    # -- events and logs -----------------------------------------------------------------------

    async def _entries(
        self,
        job_id: JobId,
        read: Callable[[int], Awaitable[_Page[T]]],
        view: Callable[[T], V],
        *,
        follow: bool,
    ) -> AsyncGenerator[V, None]:
        seen = 0

        async def look() -> Look[T]:
            nonlocal seen
            # Asked before the entries are read: an ended job has written all of them.
            has_ended = await self._has_ended(job_id)
            page = await read(seen)
            seen = page.seen
            return Look(page.entries, page.is_last, page.is_last and (has_ended or not follow))

        async with aclosing(self._looks(look, self._watch, follow=follow)) as entries:
            async for entry in entries:
                yield view(entry)

    def feed(self, look: Callable[[], Awaitable[Look[T]]]) -> AsyncGenerator[T, None]:
        """Yield what looks at the feed of all events find, without end."""
        return self._looks(look, self._watch_all, follow=True)

    async def _looks(
        self, look: Callable[[], Awaitable[Look[T]]], watch: _Watch, *, follow: bool
    ) -> AsyncGenerator[T, None]:
        """Look until it is over; with `follow`, rest between looks and endure outages."""
        woken, pause, is_over = asyncio.Event(), _SHORTEST, False
        if follow:
            watch.join(woken)
        try:
            while not is_over:
                woken.clear()
                began = time.monotonic()
                found: Look[T] = Look((), is_last=True)
                try:
                    found = await look()
                    self._is_unreachable = False
                except _OUTAGE as error:
                    if not follow:
                        raise
                    self._endure(error)
                took = time.monotonic() - began
                is_over = found.is_over
                for entry in found.entries:
                    yield entry
                if found.is_last and not is_over:
                    pause = _SHORTEST if found.entries else min(pause * _GROWTH, _LONGEST)
                    await _rest(woken, took, pause)
        finally:
            if follow:
                await watch.leave(woken)

    async def _has_ended(self, job_id: JobId) -> bool:
        (record,) = (await self._engine.load([job_id])).records
        if record is None:
            raise no_such_job(job_id)
        return record.head.state not in LIVE

    # -- waiting for the end -------------------------------------------------------------------

    async def _wait_for_all(self) -> None:
        self._watch.join(self._woken)
        pause = _SHORTEST
        try:
            while self._waiting:
                self._woken.clear()
                began = time.monotonic()
                has_news = await self._look()
                pause = _SHORTEST if has_news else min(pause * _GROWTH, _LONGEST)
                await self._report_missing_workers()
                await _rest(self._woken, time.monotonic() - began, pause)
        except Exception as error:  # noqa: BLE001 - every waiter must get it
            self._raise_for_all(error)
        finally:
            # A job that is awaited from now on needs another task.
            if self._waiter is asyncio.current_task():
                self._waiter = None
            if self._waiter is None:
                await self._watch.leave(self._woken)

    async def _look(self) -> bool:
        """Load every awaited job; return whether one has ended."""
        ids = list(self._waiting)
        has_news = False
        for start in range(0, len(ids), _JOBS):
            page = ids[start : start + _JOBS]
            try:
                records = (await self._engine.load(page)).records
            except _OUTAGE as error:
                self._endure(error)
                return has_news
            self._is_unreachable = False
            for job_id, record in zip(page, records, strict=True):
                if record is None or record.head.state not in LIVE:
                    has_news = True
                    self._answer(job_id, record)
        return has_news

    def _answer(self, job_id: JobId, record: JobRecord | None) -> None:
        for future in self._waiting.pop(job_id, ()):
            if future.done():
                continue
            if record is None:
                future.set_exception(no_such_job(job_id))
            else:
                future.set_result(record)

    def _forget(self, job_id: JobId, future: asyncio.Future[JobRecord]) -> None:
        futures = self._waiting.get(job_id, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._waiting.pop(job_id, None)

    def _raise_for_all(self, error: Exception) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        self._waiting.clear()

    async def _report_missing_workers(self) -> None:
        """Log once per type, after a few seconds, how to start the worker that is missing."""
        patience_began = time.monotonic() - _PATIENCE
        for job_type, awaited in list(self._awaited.items()):
            if awaited is None or awaited[0] > patience_began:
                continue
            self._awaited[job_type] = None
            with suppress(*_OUTAGE):
                if not await has_worker(self._engine, job_type):
                    _logger.warning(awaited[1](self._engine, job_type))

    # -- outages of the engine -----------------------------------------------------------------

    def _endure(self, error: EngineError) -> None:
        """Log the beginning of an outage; raise if the engine was closed."""
        if isinstance(error, EngineClosed):
            raise error
        if not self._is_unreachable:
            self._is_unreachable = True
            _logger.warning(
                "The engine cannot be reached; following jobs continues when it answers: %s", error
            )


class _Watch:
    """One watch of the engine, for as long as something on this loop follows jobs."""

    def __init__(self, engine: Engine, topics: tuple[Topic, ...]) -> None:
        self._engine = engine
        #: Every stored transition is announced as settled.
        self._topics = topics
        self._followers: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    def join(self, woken: asyncio.Event) -> None:
        """Set this event whenever something may have changed."""
        self._followers.add(woken)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name="trellis-watch")

    async def leave(self, woken: asyncio.Event) -> None:
        """Set this event no more; the last one to leave ends the watch."""
        self._followers.discard(woken)
        if not self._followers:
            await self.close()

    async def close(self) -> None:
        """End the watch."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        while True:
            try:
                async for _ in self._engine.watch(self._topics):
                    for woken in self._followers:
                        woken.set()
            except EngineClosed:
                return
            except EngineError:
                await asyncio.sleep(_LONGEST)  # polling continues without hints
            else:
                return


async def _rest(woken: asyncio.Event, took: float, pause: float) -> None:
    """Rest as long as the look took, so that looking takes half of the time at most; then wait."""
    await asyncio.sleep(took)
    with suppress(TimeoutError):
        async with asyncio.timeout(pause):
            await woken.wait()
