"""Hints for everybody on one loop who follows jobs: one watch of the engine serves them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from trellis.engines.port import Engine
from trellis.errors import EngineUnavailable


class News:
    """Counts the hints of an engine while somebody listens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changed = asyncio.Event()
        self._listeners = 0
        self._watch: asyncio.Task[None] | None = None
        #: How many hints have come.
        self.count = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Have hints counted inside this block."""
        self._listeners += 1
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._listen(), name="trellis-news")
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                await self.close()

    async def after(self, count: int, seconds: float) -> None:
        """Wait until there are more hints than this, or for so long."""
        if self.count == count:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def close(self) -> None:
        """Listen no more."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _listen(self) -> None:
        with suppress(EngineUnavailable):
            async for _ in self._engine.watch(("ready", "settled")):
                self.count += 1
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
