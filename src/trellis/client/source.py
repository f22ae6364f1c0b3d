"""One place where jobs are kept, as this process uses it: one engine per event loop.

An engine belongs to the loop it was opened on, so each loop gets its own and closes it when it
ends; after a fork the child opens its own and leaves its parent's alone. An engine that only lives
in this process is shared by all its loops and never closed: its jobs are nowhere else.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

from trellis.client.outbox import Outbox
from trellis.engines.port import Engine
from trellis.insight.following import Follower


class _Opened(NamedTuple):
    engine: Engine
    follower: Follower
    outbox: Outbox
    #: Open as long as the engine is; ending it closes the engine.
    lifetime: AsyncIterator[None]


class _Place:
    """What one event loop has."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.opened: _Opened | None = None
        #: `async with` blocks: the last one to end closes the engine.
        self.holders = 0
        #: Workers: they need the engine, and close it only if nobody else has used it.
        self.borrowers = 0
        self.is_used = False


class Borrowed(NamedTuple):
    """What a worker gets: this loop's engine, and the way to another for another thread."""

    engine: Engine
    make: Callable[[], Engine]


class Source:
    """Opens engines when they are first needed and knows who still needs them."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = WeakKeyDictionary()
        #: The engine that all loops share, if it is of that kind.
        self._resident: Engine | None = None

    def make(self) -> Engine:
        """Return a further engine object for the same jobs, for another thread's loop."""
        self._mind_fork()
        with self._guard:
            if self._resident is not None:
                return self._resident
            engine = self._make()
            if not engine.capabilities.processes:
                self._resident = engine
            return engine

    async def engine(self) -> Engine:
        """Return this loop's engine, opened."""
        return (await self._use()).engine

    async def follower(self) -> Follower:
        """Return what follows jobs for everything on this loop."""
        return (await self._use()).follower

    async def outbox(self) -> Outbox:
        """Return the way of this loop's single jobs into the engine."""
        return (await self._use()).outbox

    async def close(self) -> None:
        """Close this loop's engine; the next use opens it again."""
        place = self._place()
        async with place.lock:
            await _close(place)

    async def hold(self) -> Engine:
        """Return this loop's engine, opened; it stays open until the last who holds it lets go."""
        opened = await self._open()
        self._place().holders += 1
        return opened.engine

    async def let_go(self) -> None:
        """Say that this holder no longer needs the engine."""
        place = self._place()
        place.holders -= 1
        async with place.lock:
            if not place.holders and not place.borrowers:
                await _close(place)

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Borrowed]:
        """Have this loop's engine for a while, and leave it to whoever else has used it."""
        opened = await self._open()
        place = self._place()
        place.borrowers += 1
        try:
            yield Borrowed(opened.engine, self.make)
        finally:
            place.borrowers -= 1
            async with place.lock:
                if not place.holders and not place.borrowers and not place.is_used:
                    await _close(place)

    def send_away(self) -> None:
        """Send away whoever waits on a loop that runs now, from any thread."""
        for loop, place in list(self._places.items()):
            if loop.is_running() and place.opened is not None:
                asyncio.run_coroutine_threadsafe(place.opened.follower.close(), loop)

    async def _use(self) -> _Opened:
        place = self._place()
        opened = place.opened or await self._open()
        place.is_used = True
        return opened

    def _place(self) -> _Place:
        self._mind_fork()
        loop = asyncio.get_running_loop()
        place = self._places.get(loop)
        if place is None:
            place = self._places[loop] = _Place()
        return place

    def _mind_fork(self) -> None:
        if self._process != os.getpid():
            self._start()

    async def _open(self) -> _Opened:
        place = self._place()
        if place.opened is not None:
            return place.opened
        async with place.lock:
            if place.opened is None:
                engine = self.make()
                await engine.open()
                lifetime = _lifetime(engine)
                await anext(lifetime)
                place.opened = _Opened(engine, Follower(engine), Outbox(engine), lifetime)
            return place.opened


async def _close(place: _Place) -> None:
    opened, place.opened = place.opened, None
    place.is_used = False
    if opened is not None:
        await opened.follower.close()
        await opened.outbox.close()
        await anext(opened.lifetime, None)


async def _lifetime(engine: Engine) -> AsyncIterator[None]:
    """Close the engine when asked for the next value, or when the loop ends.

    `asyncio.run` finishes every asynchronous generator of its loop before it closes it; that is the
    only moment at which a program that never said goodbye can still let go in order.
    """
    try:
        yield
    finally:
        if engine.capabilities.processes:
            await engine.close()
