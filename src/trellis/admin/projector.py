"""The projector: reads a stream from where the projection is, and stores page after page.

The place in the stream is kept in the projection alone, in the transaction of the rows. So any
number of projectors may write one projection, or each its own, and a crash repeats nothing. New
messages wake it by the live feed, which is a hint: without it, it looks once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from trellis.admin.messages import Messages
from trellis.core.durations import SECOND
from trellis.engines.jetstream.answers import WRITE, Got, read_instant
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.message import UNREADABLE
from trellis.engines.jetstream.topology import identity_of
from trellis.engines.jetstream.upkeep import KEEP_EMPTY
from trellis.engines.jetstream.writing import BATCH
from trellis.engines.projection import SCHEMA, Lag, Place, Projection
from trellis.errors import DatabaseDamaged, DatabaseMissing, EngineError, PayloadInvalid, Unstorable

#: How many messages are read at once: the largest write, and the message before it, which is known.
PAGE: Final = BATCH + 1
#: The filter over all subjects of a stream.
_EVERYTHING: Final = ">"
_POLL: Final = 1.0
_RETRY: Final = 1.0
#: What a projection raises for values that it cannot have, however often they come.
_REFUSED: Final = (Unstorable, PayloadInvalid, *UNREADABLE)
#: After so many seconds without a look, states may be over of which the stream has nothing more.
_ABSENT: Final = KEEP_EMPTY / SECOND / 2
_logger = logging.getLogger(__name__)


class Projector:
    """Keeps a projection up to date with one stream."""

    def __init__(
        self,
        link: Link,
        stream: str,
        *,
        projection: Projection,
        messages: Messages,
        give_up: Callable[[EngineError], None],
    ) -> None:
        self._link = link
        #: Called when the database of the projection cannot be used any more.
        self._give_up = give_up
        self.stream = stream
        self._projection = projection
        self._messages = messages
        self.place = 0
        #: Of the stream whose messages were read last.
        self._stream_id = 0
        #: Whether the projection is known to have all that is deleted from the stream by now.
        self._follows = False
        #: When it last looked, by the clock of the machine: one that is suspended looks at nothing.
        self._stepped_at = time.time()
        #: The next page and its first sequence, which is read while another is stored.
        self._ahead: tuple[int, asyncio.Task[list[Got]]] | None = None
        self._is_stopped = False
        self._ended = asyncio.Event()
        self._ended.set()
        self._wakeup = asyncio.Event()
        self._moved = asyncio.Condition()

    def wake(self) -> None:
        """Look for messages now."""
        self._wakeup.set()

    async def stop(self) -> None:
        """Let `run` return after the page that it stores, and wait until it has."""
        self._is_stopped = True
        self.wake()
        await self._ended.wait()

    async def run(self) -> None:
        """Project until stopped."""
        self._ended.clear()
        try:
            await self._follow()
        finally:
            if self._ahead is not None:
                self._ahead[1].cancel()
            self._ended.set()

    async def _follow(self) -> None:
        while not self._is_stopped:
            try:
                while await self.step():
                    if self._is_stopped:
                        return
                wait = _POLL
            except (DatabaseDamaged, DatabaseMissing) as error:
                self._give_up(error)
                return
            except EngineError as error:
                self._follows = False
                _logger.warning("The projection of %s waits: %s", self.stream, error)
                wait = _RETRY
            except Exception:
                self._follows = False
                _logger.exception("The projection of %s waits", self.stream)
                wait = _RETRY
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wakeup.wait()
            self._wakeup.clear()

    async def step(self) -> bool:
        """Store the next page; False if there is none."""
        if time.time() - self._stepped_at > _ABSENT:
            self._follows = False
        self._stepped_at = time.time()
        end = await self._end()
        place = await self._projection.place(self.stream) or end._replace(sequence=0)
        if place.sequence < self.place:
            await self._arrive(place.sequence)  # it was erased
        if not await self._fits(place, end):
            return True
        if self._stream_id != end.stream_id:
            self._messages.forget()
            self._stream_id = end.stream_id
        page = list[Got]()
        if place.sequence < end.sequence:
            page = await self._page(max(place.sequence, 1), end.sequence)
        if await self._is_rewritten(place, page):
            await self._erase(place, "the stream lost its end, and others came in place of it")
            return True
        # What the projection has was read once more, for that comparison.
        has_known = bool(page) and page[0].sequence == place.sequence
        page = whole(page[has_known:], PAGE - has_known)
        after = page[-1].sequence if page else end.sequence
        if len(page) > PAGE // 2:
            self._read_ahead(after, end.sequence)
        if after > place.sequence:
            stored = await self._store(place, page, after)
            if stored is None:
                # Another projector has stored it.
                place = await self._projection.place(self.stream) or place._replace(sequence=0)
                stored = place.sequence
            after = stored
        await self._arrive(after)
        return bool(page)

    async def _store(self, place: Place, page: list[Got], after: int) -> int | None:
        """Store a page, or the first part of one with values that the tables refuse.

        Return where that ends; None if the projection has another place. A message whose values
        are refused when it is alone is left out: it must not stop the projection.
        """
        newest_at = max([place.newest_at, *(got.at for got in page)])
        while True:
            changes = await self._messages.changes(page)
            end = place._replace(sequence=after, newest_at=newest_at)
            try:
                is_stored = await self._projection.project(self.stream, place, end, changes)
            except _REFUSED as error:
                if not changes:
                    raise
                if len(page) == 1:
                    self._messages.log_misfit(page[0], error)
                page = page[: len(page) // 2]
                if page:
                    after = page[-1].sequence
                    newest_at = max(place.newest_at, *(got.at for got in page))
            else:
                return after if is_stored else None

    def _read_ahead(self, first: int, last: int) -> None:
        """Read the next page, which begins with the end of this one, while this one is stored."""
        task = asyncio.create_task(self._read(first, last))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ahead = (first, task)

    async def _read(self, first: int, last: int) -> list[Got]:
        return await self._link.following(self.stream, _EVERYTHING, first, PAGE, end=last)

    async def _page(self, first: int, last: int) -> list[Got]:
        """Return the messages from this one on, a page at most."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == first:
            page = await ahead[1]
            if len(page) == PAGE:  # a shorter one may lack what was stored since
                return page
        elif ahead is not None:
            ahead[1].cancel()
        return await self._read(first, last)

    async def _fits(self, place: Place, end: Place) -> bool:
        """Return whether the projection is a part of this stream; otherwise erase it."""
        if place.schema > SCHEMA:
            raise EngineError(
                f"The projection of {self.stream} was made by a newer version of Trellis. Upgrade "
                "this program; jobs run on."
            )
        reason = ""
        if place.stream_id != end.stream_id:
            reason = "the stream was made again"
        elif place.sequence > end.sequence:
            reason = f"the stream ends at {end.sequence:,}, before the {place.sequence:,} it has"
        elif place.schema != SCHEMA:
            reason = "it was made by an older version of Trellis"
        elif not self._follows and await self._lacks_deletions(place):
            reason = "it was behind for so long that states which are over were deleted"
        if not reason:
            self._follows = True
            return True
        await self._erase(place, reason)
        return False

    async def _erase(self, place: Place, reason: str) -> None:
        await self._arrive(0)
        if await self._projection.erase(self.stream, place):
            _logger.warning(
                "The projection does not fit %s: %s. It is made again from the first message; "
                "lists are not complete until then, and jobs run on.", self.stream, reason,
            )  # fmt: skip

    async def _is_rewritten(self, place: Place, page: list[Got]) -> bool:
        """Return whether messages of the projection were replaced by others with their numbers.

        Those came later than all that it has. `page` begins with its last message, unless that was
        deleted: then the server finds the first message that came later.
        """
        if not page or not place.newest_at:
            return False
        if page[0].sequence <= place.sequence:
            return page[0].at > place.newest_at
        later = await self._link.after(self.stream, place.newest_at)
        return later is not None and later.sequence <= place.sequence

    async def _lacks_deletions(self, place: Place) -> bool:
        """Return whether a state may be over of which the stream has nothing any more."""
        if not place.sequence:
            return False
        info = await self._link.api(f"STREAM.INFO.{self.stream}")
        first = await self._link.next(self.stream, _EVERYTHING, place.sequence + 1)
        kept_since = read_instant(info["ts"]) - KEEP_EMPTY
        return first is not None and max(first.at, place.rebuilt_at) < kept_since

    async def _end(self) -> Place:
        info = await self._link.api(f"STREAM.INFO.{self.stream}")
        return Place(int(info["state"]["last_seq"]), identity_of(info))

    async def lag(self) -> Lag:
        """Return how far the projection is behind the stream."""
        place = await self._projection.place(self.stream)
        before = 0 if place is None else place.sequence
        info = await self._link.api(f"STREAM.INFO.{self.stream}")
        behind = int(info["state"]["last_seq"]) - before
        if behind <= 0:
            return Lag(self.stream, 0, 0.0)
        first = await self._link.next(self.stream, _EVERYTHING, before + 1)
        if first is None:  # the messages between were deleted
            return Lag(self.stream, 0, 0.0)
        seconds = (read_instant(info["ts"]) - first.at) / SECOND
        return Lag(self.stream, behind, max(0.0, seconds))

    async def last(self) -> int:
        """Return the sequence of the last message of the stream."""
        return (await self._end()).sequence

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


def whole(page: list[Got], size: int) -> list[Got]:
    """Return a page that is full without a write at its end of which it may have a part only."""
    if len(page) < size:
        return page
    write, end = page[-1].headers.get(WRITE), len(page)
    while end and write is not None and page[end - 1].headers.get(WRITE) == write:
        end -= 1
    return page[:end] or page
