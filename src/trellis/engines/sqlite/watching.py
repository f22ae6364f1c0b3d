"""Hints on SQLite: from this process at once, from others by doorbell, at worst by a poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from trellis.engines.hints import Hints
from trellis.engines.sqlite.doorbell import Doorbell, Ear
from trellis.engines.values import Topic
from trellis.errors import TrellisError

_POLL_SECONDS: Final = 0.25
#: Rings to other processes are at least this far apart.
RING_SECONDS: Final = 0.003
_ALL: Final[frozenset[Topic]] = frozenset({"ready", "settled"})


class Watching:
    """Everybody in this process who waits for something in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hints = Hints()
        self._doorbell: Doorbell | None = None
        self._data_version: Callable[[], Awaitable[int]] | None = None
        self._unrung: set[Topic] = set()
        self._rung = 0.0

    @property
    def can_ring(self) -> bool:
        """Whether other processes can be woken at once."""
        return self._doorbell is not None and self._doorbell.folder is not None

    def open(self, data_version: Callable[[], Awaitable[int]]) -> None:
        """Begin; `data_version` changes when another connection has written."""
        self._hints.reopen()
        self._doorbell = Doorbell(self._path)
        self._data_version = data_version

    def close(self) -> None:
        """End every watch."""
        self._hints.close()
        if self._doorbell is not None:
            self._doorbell.close()
            self._doorbell = None

    def tell(self, topics: set[Topic]) -> None:
        """Pass on what a commit of this process touched. Called on the writer thread.

        Watchers here are told at once; other processes at most every few milliseconds, because a
        ring costs system calls: what is left over goes out with `ring`.
        """
        self._hints.publish(topics)
        self._unrung |= topics
        if time.monotonic() - self._rung >= RING_SECONDS:
            self.ring()

    def ring(self) -> None:
        """Tell other processes what they have not been told yet."""
        doorbell = self._doorbell
        if doorbell is not None and self._unrung:
            doorbell.ring(self._unrung)
        self._unrung = set()
        self._rung = time.monotonic()

    @property
    def is_rung(self) -> bool:
        """Whether other processes have been told everything."""
        return not self._unrung

    async def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints until closed."""
        loop = asyncio.get_running_loop()
        ear = self._ear()
        if ear is not None:
            loop.add_reader(ear.socket, ear.hear, self._hints.publish)
        poll = asyncio.create_task(self._poll())
        try:
            async for topic in self._hints.watch(topics):
                yield topic
        finally:
            if ear is not None:
                loop.remove_reader(ear.socket)
                ear.close()
            poll.cancel()
            with suppress(asyncio.CancelledError):
                await poll

    def _ear(self) -> Ear | None:
        folder = self._doorbell.folder if self._doorbell else None
        if folder is None:
            return None
        try:
            return Ear(folder)
        except OSError:
            return None  # the poll notices, a little later

    async def _poll(self) -> None:
        """Notice what the doorbell missed."""
        seen: int | None = None
        with suppress(TrellisError):
            while self._data_version is not None:
                version = await self._data_version()
                if seen is not None and version != seen:
                    self._hints.publish(_ALL)
                seen = version
                await asyncio.sleep(_POLL_SECONDS)
