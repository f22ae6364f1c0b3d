"""The projector: reads a stream from where the projection is, and stores page after page.

The place in the stream is kept in the projection alone, in the transaction of the rows. So any
number of projectors may write one projection, or each its own, and a crash repeats nothing. New
messages wake it by the live feed, which is a hint: without it, it looks once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final

from trellis.admin.messages import Messages
from trellis.engines.jetstream.link import Link
from trellis.engines.projection import Projection
from trellis.errors import EngineError

#: The most messages of one transaction.
PAGE: Final = 1000
_POLL: Final = 1.0
_RETRY: Final = 1.0
_logger = logging.getLogger(__name__)


class Projector:
    """Keeps a projection up to date with one stream."""

    def __init__(
        self, link: Link, stream: str, everything: str, projection: Projection, messages: Messages
    ) -> None:
        self._link = link
        self.stream = stream
        #: The filter over all subjects of the stream.
        self._everything = everything
        self._projection = projection
        self._messages = messages
        self.place = 0
        self._wakeup = asyncio.Event()
        self._moved = asyncio.Condition()

    def wake(self) -> None:
        """Look for messages now."""
        self._wakeup.set()

    async def run(self) -> None:
        """Project until cancelled."""
        while True:
            try:
                while await self.step():
                    pass
            except EngineError as error:
                _logger.warning("The projection of %s waits: %s", self.stream, error)
                await asyncio.sleep(_RETRY)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL):
                    await self._wakeup.wait()
            self._wakeup.clear()

    async def step(self) -> bool:
        """Store the next page; False if there is none."""
        before = await self._projection.place(self.stream)
        last = await self.last()
        if last < before:
            raise EngineError(
                f"The projection has message {before} of {self.stream}, which ends at {last}: the "
                "stream was made again or has lost its end. Run `trellis jobs rebuild`."
            )
        page = await self._link.following(self.stream, self._everything, before + 1, PAGE)
        if not page and last > before:
            # A replica may lag, or the last messages were deleted: the leader knows.
            found = await self._link.next(self.stream, self._everything, before + 1)
            page = [] if found is None else [found]
        after = page[-1].sequence if page else last
        if after > before:
            changes = await self._messages.changes(page)
            if not await self._projection.project(self.stream, before, after, changes):
                after = before  # another projector has stored it
                await self._arrive(await self._projection.place(self.stream))
                return True
        await self._arrive(after)
        return bool(page)

    async def last(self) -> int:
        """Return the sequence of the last message of the stream."""
        info = await self._link.api(f"STREAM.INFO.{self.stream}")
        return int(info["state"]["last_seq"])

    async def _arrive(self, place: int) -> None:
        async with self._moved:
            self.place = place
            self._moved.notify_all()

    async def until(self, sequence: int, limit: float) -> bool:
        """Wait until this message is stored; False if it was not within this many seconds."""
        end = time.monotonic() + limit
        self.wake()
        async with self._moved:
            while self.place < sequence:
                try:
                    async with asyncio.timeout(end - time.monotonic()):
                        await self._moved.wait()
                except TimeoutError:
                    return False
        return True
