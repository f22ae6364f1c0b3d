"""Hints for remote programs: one watch of the engine per server process, and long polls on it.

The watch counts hints by topic. A poll names the counts that its caller has seen and waits until
one is higher, so no hint between two polls is lost. After a restart, or from another replica, the
counts are those of another process: the caller gets a hint at once and looks for itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, get_args

from trellis.engines.http.protocol import POLL, Hinted, Marks
from trellis.engines.port import Engine
from trellis.engines.values import Topic
from trellis.errors import EngineError

_TOPICS: Final[tuple[Topic, ...]] = get_args(Topic)
#: Seconds before the engine is watched again after it was lost.
_PAUSE: Final = 1.0


class HintPoll:
    """Counts the hints of an engine, and answers long polls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks = Marks(secrets.randbits(62) + 1)
        self._changed = asyncio.Condition()
        self._is_over = False

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the engine while the block runs; then answer every poll at once."""
        task = asyncio.create_task(self._watch(), name="trellis-hints")
        try:
            yield
        finally:
            await self.end()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def end(self) -> None:
        """Answer every poll at once from now on."""
        self._is_over = True
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, topics: Sequence[Topic], since: Marks) -> Hinted:
        """Wait for a hint about one of these topics, at most `POLL` seconds."""
        if since.process == 0:
            return Hinted((), self._marks)
        if since.process == self._marks.process:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL), self._changed:
                    await self._changed.wait_for(lambda: self._is_over or self._new(topics, since))
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
                    await self._count(topic)
            await asyncio.sleep(_PAUSE)
            for topic in _TOPICS:  # hints may have been lost meanwhile
                await self._count(topic)

    async def _count(self, topic: Topic) -> None:
        self._marks = self._marks._replace(**{topic: getattr(self._marks, topic) + 1})
        async with self._changed:
            self._changed.notify_all()
