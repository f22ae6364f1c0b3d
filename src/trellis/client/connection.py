"""The engine behind a service: found at first use, one per process and event loop.

Nothing is opened at import. An engine belongs to the loop it was opened on, so each loop gets its
own and closes it when it ends; after a fork the child opens its own and leaves its parent's alone.
An engine that only lives in this process is shared by all its loops: its jobs are nowhere else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from trellis.client.waiting import WaitingRoom
from trellis.contract.settings import DEFAULT_URL
from trellis.engines import make_engine
from trellis.engines.port import Engine


class _Opened(NamedTuple):
    engine: Engine
    room: WaitingRoom
    #: Open as long as the engine is; ending it closes the engine.
    lifetime: AsyncIterator[None]


class _Place:
    """What one event loop has."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.opened: _Opened | None = None
        #: Workers and `async with` blocks that need the engine.
        self.users = 0


class Connection:
    """Where a service's jobs are kept."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._process = os.getpid()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = WeakKeyDictionary()
        self._resident: Engine | None = None

    @property
    def url(self) -> str:
        """The engine's URL: as given, else `TRELLIS_URL`, else a file beside the program."""
        return self._url or os.environ.get("TRELLIS_URL") or DEFAULT_URL

    def point_at(self, url: str) -> None:
        """Use another engine from now on; what is open stays as it is."""
        self._url = url

    def make(self) -> Engine:
        """Return a further engine object for the same jobs, for another thread's loop."""
        return self._resident if self._resident is not None else make_engine(self.url)

    async def engine(self) -> Engine:
        """Return this loop's engine, opened."""
        return (await self._open()).engine

    async def room(self) -> WaitingRoom:
        """Return the place where this loop's waiters wait."""
        return (await self._open()).room

    async def close(self) -> None:
        """Close this loop's engine; the next use opens it again."""
        place = self._place()
        async with place.lock:
            await _close(place)

    async def hold(self) -> Engine:
        """Return this loop's engine, opened; it stays open until the last who holds it lets go."""
        opened = await self._open()
        self._place().users += 1
        return opened.engine

    async def let_go(self) -> None:
        """Say that this holder no longer needs the engine."""
        place = self._place()
        place.users -= 1
        async with place.lock:
            if not place.users:
                await _close(place)

    def _place(self) -> _Place:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._places = WeakKeyDictionary()
        loop = asyncio.get_running_loop()
        place = self._places.get(loop)
        if place is None:
            place = self._places[loop] = _Place()
        return place

    async def _open(self) -> _Opened:
        place = self._place()
        if place.opened is not None:
            return place.opened
        async with place.lock:
            if place.opened is None:
                engine = self.make()
                await engine.open()
                if not engine.capabilities.processes:
                    self._resident = engine
                lifetime = _lifetime(engine)
                await anext(lifetime)
                place.opened = _Opened(engine, WaitingRoom(engine), lifetime)
            return place.opened


async def _close(place: _Place) -> None:
    opened, place.opened = place.opened, None
    if opened is not None:
        await opened.room.close()
        await anext(opened.lifetime, None)


async def _lifetime(engine: Engine) -> AsyncIterator[None]:
    """Close the engine when asked for the next value, or when the loop ends.

    `asyncio.run` finishes every asynchronous generator of its loop before it closes it; that is the
    only moment at which a program that never said goodbye can still let go in order.
    """
    try:
        yield
    finally:
        await engine.close()
