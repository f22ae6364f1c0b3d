"""Hints for remote programs: one watch of the engine per server process, and long polls on it.

The watch counts hints by topic. A poll names the counts that its caller has seen and waits until
one is higher, so no hint between two polls is lost. After a restart, or from another replica, the
counts are those of another process: the caller gets a hint at once and looks for itself.

A hint is for all workers, and each of them asks for jobs when it gets one. So that hundreds of
workers do not do so at the same moment for one job, a hint goes to two workers of each kind at a
time, those that have waited longest first. A poll whose turn has not come keeps its hint.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, get_args

from trellis.engines.http.protocol import POLL, Hinted, Marks
from trellis.engines.port import Engine
from trellis.engines.values import Topic
from trellis.errors import EngineError

_TOPICS: Final[tuple[Topic, ...]] = get_args(Topic)
#: Seconds before the engine is watched again after it was lost.
_PAUSE: Final = 1.0
#: How many workers of a kind get a hint at once, and seconds until the next ones do.
_AT_ONCE: Final = 2
_STEP: Final = 0.025


class _Poll(NamedTuple):
    """A poll that waits."""

    topics: tuple[Topic, ...]
    since: Marks
    #: The job types that its caller claims: workers that are alike in this are of one kind. Empty:
    #: the caller claims none, and its turn is at once.
    wanted: tuple[str, ...]


class HintPoll:
    """Counts the hints of an engine, and answers long polls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks = Marks(secrets.randbits(62) + 1)
        #: In the order in which they began to wait.
        self._waiting: dict[asyncio.Future[None], _Poll] = {}
        self._passing_on: asyncio.Task[None] | None = None
        self._is_over = False

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the engine while the block runs; then answer every poll at once."""
        task = asyncio.create_task(self._watch(), name="trellis-hints")
        try:
            yield
        finally:
            self.end()
            for each in (task, self._passing_on):
                if each is not None:
                    each.cancel()
                    with suppress(asyncio.CancelledError):
                        await each

    def end(self) -> None:
        """Answer every poll at once from now on."""
        self._is_over = True
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)

    async def wait(
        self, topics: Sequence[Topic], since: Marks, wanted: Sequence[str] = ()
    ) -> Hinted:
        """Wait for a hint about one of these topics, at most `POLL` seconds."""
        if since.process == 0:
            return Hinted((), self._marks)
        if since.process == self._marks.process and not self._is_over:
            woken = asyncio.get_running_loop().create_future()
            self._waiting[woken] = _Poll(tuple(topics), since, tuple(wanted))
            self._pass_on()
            try:
                async with asyncio.timeout(POLL):
                    await woken
            except TimeoutError:
                pass
            finally:
                del self._waiting[woken]
        return Hinted(tuple(self._new(topics, since)), self._marks)

    def _new(self, topics: Sequence[Topic], since: Marks) -> list[Topic]:
        marks = self._marks
        if since.process != marks.process:
            return list(topics)
        return [each for each in topics if getattr(marks, each) > getattr(since, each)]

    async def _watch(self) -> None:
        while True:
            with suppress(EngineError):
                async for topic in self._engine.watch(_TOPICS):
                    self._count(topic)
            await asyncio.sleep(_PAUSE)
            for topic in _TOPICS:  # hints may have been lost meanwhile
                self._count(topic)

    def _count(self, topic: Topic) -> None:
        self._marks = self._marks._replace(**{topic: getattr(self._marks, topic) + 1})
        self._pass_on()

    def _pass_on(self) -> None:
        if self._passing_on is None or self._passing_on.done():
            self._passing_on = asyncio.create_task(self._answer_some(), name="trellis-hints-polls")

    async def _answer_some(self) -> None:
        """Answer polls that have a hint, a few at a time, until none is left."""
        while True:
            answered: Counter[tuple[str, ...]] = Counter()
            for woken, (topics, since, wanted) in self._waiting.items():
                has_turn = not wanted or answered[wanted] < _AT_ONCE
                if has_turn and not woken.done() and self._new(topics, since):
                    woken.set_result(None)
                    answered[wanted] += 1
            if not answered.total():
                return
            await asyncio.sleep(_STEP)
