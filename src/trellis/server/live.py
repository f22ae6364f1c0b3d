"""What all streams of a server share: one reader of the feed, of each followed log, of the queues.

A reader runs while at least one stream needs it, and sets the events of the streams when it has
found something. It polls as `insight.following` does: fast after news and hints, else each second.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from functools import cached_property
from typing import Any, Final

from trellis.core.job import JobId
from trellis.engines.feed import NOW, Changes, Cursor, Expired, FeedEntry, Position, read_cursor
from trellis.engines.port import Engine
from trellis.errors import EngineClosed, EngineError
from trellis.insight.feed import JobChange, Traits, job_change, measure_lag, traits_of
from trellis.insight.following import Follower, Look
from trellis.insight.views import as_json, job_log_line, progress_view
from trellis.operations.queues import list_queues
from trellis.server.windows import Window

#: Events in one page of the shared reader.
_PAGE: Final = 1000
#: Events and log lines that one stream holds at a time.
BATCH: Final = 250
#: How many entries are kept in memory for all streams.
_KEPT_CHANGES: Final = 5000
_KEPT_LINES: Final = 2000
#: Reads of the store by streams that are behind, at the same time.
_READS: Final = 4
#: Seconds between two looks at a log: few after news, and more with every look that finds none.
_SHORTEST, _LONGEST, _GROWTH = 0.1, 1.0, 1.5
#: Seconds between two looks at the queues.
_QUEUES: Final = 1.0
_logger = logging.getLogger(__name__)


class LiveChange:
    """A change of a job; its text is made once for all streams."""

    def __init__(self, entry: FeedEntry) -> None:
        self.entry = entry
        #: Loaded when a stream wants it; None: not yet, or the job was removed.
        self.traits: Traits | None = None

    @cached_property
    def change(self) -> JobChange:
        """The change as callers see it."""
        return job_change(self.entry)

    @cached_property
    def data(self) -> str:
        """The change as JSON."""
        return compact(as_json(self.change))


def live_entries(page: Changes) -> list[tuple[Position, LiveChange]]:
    """Return the entries of a page with their places."""
    return [(position_of(each.cursor), LiveChange(each)) for each in page.entries]


def compact(value: object) -> str:
    """Return JSON on one line."""
    return json.dumps(value, separators=(",", ":"))


def position_of(cursor: str) -> Position:
    """Return the place of a cursor."""
    return parse_cursor(cursor).position


def parse_cursor(cursor: str) -> Cursor:
    """Return a cursor that the engine has made."""
    return read_cursor(cursor[:1], cursor)


class Live:
    """The shared readers of one server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._follower = Follower(engine)
        self._woken: set[asyncio.Event] = set()
        self._feed: asyncio.Task[None] | None = None
        self._tails: dict[JobId, JobTail] = {}
        self._reads = asyncio.Semaphore(_READS)
        self._loads = asyncio.Lock()
        self.queues = QueueCounts(engine, self.wake)
        #: None until the reader of the feed has begun.
        self.changes: Window[Position, LiveChange] | None = None

    def join(self, woken: asyncio.Event) -> None:
        """Set this event whenever there may be news; start the reader if it does not run."""
        self._woken.add(woken)
        if self._feed is None or self._feed.done():
            self.changes = None  # what a reader that failed has missed is read from the store
            self._feed = asyncio.create_task(self._read_feed(), name="trellis-live-feed")

    async def leave(self, woken: asyncio.Event) -> None:
        """Set this event no more; the last stream to leave ends the reader of the feed."""
        self._woken.discard(woken)
        if not self._woken:
            task, self._feed, self.changes = self._feed, None, None
            await _end(task)

    def wake(self) -> None:
        """Let every stream look."""
        for woken in self._woken:
            woken.set()

    async def page(self, cursor: str) -> Changes | Expired:
        """Read the store for a stream that is behind the window."""
        async with self._reads:
            return await self.engine.changes(cursor, BATCH)

    async def load_traits(self, changes: Iterable[LiveChange]) -> None:
        """Load the traits of these jobs; streams that want the same at a time share a read."""
        async with self._loads:
            missing = [each for each in changes if each.traits is None]
            if not missing:
                return
            ids = list(dict.fromkeys(each.entry.job_id for each in missing))
            records = (await self.engine.load(ids)).records
            found = {each.definition.id: traits_of(each.definition) for each in records if each}
            for each in missing:
                each.traits = found.get(each.entry.job_id)

    async def lines(self, job_id: JobId, after: int) -> list[tuple[int, str]]:
        """Read the log for a stream that is behind the window."""
        async with self._reads:
            return await _lines(self.engine, job_id, after)

    def tail(self, job_id: JobId) -> JobTail:
        """Return the shared reader of a job's log and progress; it begins with `follow`."""
        tail = self._tails.get(job_id)
        if tail is None or not tail.followers:
            tail = self._tails[job_id] = JobTail(self.engine, job_id, self.wake)
        return tail

    async def close(self) -> None:
        """End all readers."""
        await _end(self._feed)
        for tail in [*self._tails.values()]:
            await tail.close()
        await self.queues.close()
        await self._follower.close()

    async def _read_feed(self) -> None:
        cursor = NOW

        async def look() -> Look[Changes]:
            nonlocal cursor
            page = await self.engine.changes(cursor, _PAGE)
            end = position_of(page.cursor)
            if self.changes is None or isinstance(page, Expired):
                # Streams find out what that means for them when they read at their own cursors.
                self.changes = Window(end, _KEPT_CHANGES)
                self.wake()
            else:
                self.changes.add(live_entries(page), end)
            cursor = page.cursor
            if isinstance(page, Expired):
                return Look((), is_last=False)
            await measure_lag(self.engine, page)
            return Look([page] if page.entries else (), page.is_last)

        try:
            async with aclosing(self._follower.feed(look)) as pages:
                async for page in pages:
                    self.wake()
                    self._wake_tails({each.job_id for each in page.entries})
        except EngineClosed:
            pass
        except Exception:
            _logger.exception("The reader of the feed failed. The streams start it again.")

    def _wake_tails(self, changed: set[JobId]) -> None:
        for job_id, tail in [*self._tails.items()]:
            if not tail.followers:
                del self._tails[job_id]
            elif job_id in changed:
                tail.woken.set()


class _Poller:
    """Looks again and again while it has followers; the pauses grow while nothing is new."""

    def __init__(self, name: str, wake: Callable[[], None], shortest: float = _SHORTEST) -> None:
        self.followers = 0
        #: Set to look at once.
        self.woken = asyncio.Event()
        self._name, self._wake, self._shortest = name, wake, shortest
        self._task: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """Count a follower; the first one lets it begin."""
        self.followers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def release(self) -> None:
        """Count a follower no more; the last one ends it."""
        self.followers -= 1
        if not self.followers:
            await self.close()

    async def close(self) -> None:
        """End."""
        task, self._task = self._task, None
        await _end(task)

    async def look(self) -> bool:
        """Look once; return whether something is new."""
        raise NotImplementedError

    async def _run(self) -> None:
        pause = self._shortest
        while True:
            self.woken.clear()
            has_news = False
            try:
                has_news = await self.look()
            except EngineClosed:
                return
            except EngineError:
                pause = _LONGEST  # the reader of the feed has logged the outage
            if has_news:
                self._wake()
            pause = self._shortest if has_news else min(pause * _GROWTH, _LONGEST)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.woken.wait()


class JobTail(_Poller):
    """The log and the progress of one job."""

    def __init__(self, engine: Engine, job_id: JobId, wake: Callable[[], None]) -> None:
        super().__init__(f"trellis-live-{job_id}", wake)
        self.job_id = job_id
        self.lines: Window[int, str] = Window(0, _KEPT_LINES)
        #: The latest progress as JSON; None: none was reported.
        self.progress: str | None = None
        self._engine = engine

    async def look(self) -> bool:
        """Read new lines and the present progress."""
        has_news = False
        while lines := await _lines(self._engine, self.job_id, self.lines.end):
            self.lines.add(lines, lines[-1][0])
            has_news = True
            self._wake()
        activity = await self._engine.activity(self.job_id)
        if activity is not None:
            view = {"job_id": self.job_id, **as_json(progress_view(activity))}
            progress = compact(view)
            has_news = has_news or progress != self.progress
            self.progress = progress
        return has_news


class QueueCounts(_Poller):
    """What is in the queues, read at most once per second."""

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        super().__init__("trellis-live-queues", wake, _QUEUES)
        #: The views as JSON; None: they have not been read yet.
        self.views: list[dict[str, Any]] | None = None
        self._engine = engine

    async def look(self) -> bool:
        """Read the queues."""
        views = [
            {name: value for name, value in as_json(each).items() if name != "rates"}
            for each in await list_queues(self._engine)
        ]
        has_news, self.views = views != self.views, views
        return has_news


async def _lines(engine: Engine, job_id: JobId, after: int) -> list[tuple[int, str]]:
    return [
        (each.number, compact({"job_id": job_id, **as_json(job_log_line(each))}))
        for each in await engine.logs(job_id, after, BATCH)
    ]


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
