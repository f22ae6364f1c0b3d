"""Access to the engine behind a service: found at first use, one engine per process and event loop.

Nothing is opened at import. An engine belongs to the event loop it was opened on, so each loop gets
its own and closes it when the loop ends; after a fork the child opens its own and leaves its
parent's alone. An engine that lives only in this process is shared by all its loops and never
closed, because its jobs are stored nowhere else.

Tests replace the engines of all services with an override (`EngineOverride`); when it has ended,
every service is bound as before.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet

from trellis.client.submission import Batcher
from trellis.config import DEFAULT_URL, environment, sources
from trellis.declaration.worker_location import check_reachable
from trellis.engines import make_engine
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError
from trellis.insight.following import Follower

_numbers: Final = count()
_living: Final[WeakSet[EngineAccess]] = WeakSet()


class EngineAccess:
    """The access of one service, its jobs and references to the engine."""

    def __init__(self, url: str | None = None, owner: object = None) -> None:
        #: The service this belongs to.
        self.owner = owner
        self._number = next(_numbers)
        self._url = url
        self._own = LoopEngines(self._make_own)
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, list[LoopEngines]] = (
            WeakKeyDictionary()
        )
        _living.add(self)

    @property
    def url(self) -> str:
        """The engine's URL: as given, else `TRELLIS_URL`, else a file beside the program."""
        override = current_override()
        return self._own_url if override is None else override.url

    @property
    def _own_url(self) -> str:
        return self._url or environment().get("TRELLIS_URL") or DEFAULT_URL

    def _make_own(self, create: bool) -> Engine:  # noqa: FBT001 - called by position
        url = self._own_url
        try:
            return make_engine(check_reachable(url), create=create)
        except ConfigurationError as error:
            setting = None if self._url else sources().get("TRELLIS_URL")
            if setting is None:
                raise
            raise type(error)(f"{setting.origin}: {error}") from None

    def point_at(self, url: str) -> None:
        """Use another engine from now on; engines that are open stay as they are."""
        self._url = url

    def make(self) -> Engine:
        """Return a further engine object for the same jobs, for another thread's loop."""
        return self._engines().make()

    async def engine(self) -> Engine:
        """Return this loop's engine, opened."""
        return await self._engines().engine()

    async def follower(self) -> Follower:
        """Return what follows jobs for everything on this loop."""
        return await self._engines().follower()

    async def following(self) -> tuple[Engine, Follower]:
        """Return this loop's engine, opened, and what follows its jobs."""
        engines = self._engines()
        return await engines.engine(), await engines.follower()

    async def batcher(self) -> Batcher:
        """Return what stores the single jobs of this loop."""
        return await self._engines().batcher()

    async def close(self) -> None:
        """Close this loop's engine; the next use opens it again."""
        await self._engines().close()

    async def hold(self) -> Engine:
        """Return this loop's engine, opened; it stays open until the last holder releases it."""
        engines = self._engines()
        engine = await engines.hold()
        self._held.setdefault(asyncio.get_running_loop(), []).append(engines)
        return engine

    async def release(self) -> None:
        """End the latest `hold` of this loop, of the engine it returned then."""
        await self._held[asyncio.get_running_loop()].pop().release()

    def borrowed(self) -> AbstractAsyncContextManager[BorrowedEngine]:
        """Use this loop's engine for a while; it stays open if other code has used it too."""
        return self._engines().borrowed()

    def _engines(self) -> LoopEngines:
        override = current_override()
        return self._own if override is None else override.engines_for(self.owner)


def living_accesses() -> list[EngineAccess]:
    """Return every access of this process that is still in use, the oldest first."""
    return sorted(_living, key=lambda access: access._number)  # noqa: SLF001 - its module


# -- one engine per event loop -----------------------------------------------------------------


class _Opened(NamedTuple):
    engine: Engine
    follower: Follower
    batcher: Batcher
    #: Open as long as the engine is; ending it closes the engine.
    lifetime: AsyncIterator[None]


class _LoopState:
    """What one event loop has, and what still needs it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.opened: _Opened | None = None
        #: `async with` blocks: the last one to end closes the engine.
        self.holders = 0
        #: Workers: they need the engine, and close it only if no other code has used it.
        self.borrowers = 0
        self.is_used = False


class BorrowedEngine(NamedTuple):
    """What a worker gets: this loop's engine, and a function that makes one for another thread.

    Engines of that function do not create a missing store.
    """

    engine: Engine
    make: Callable[[], Engine]


class LoopEngines:
    """Opens one engine per event loop at its first use, and closes it after its last."""

    def __init__(self, make: Callable[[bool], Engine]) -> None:
        #: Makes an engine object; the argument says whether it may create a missing store.
        self._make = make
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._states: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = WeakKeyDictionary()
        #: The engine that all loops share, if it exists only in this process.
        self._shared_engine: Engine | None = None

    def make(self, *, create: bool = True) -> Engine:
        """Return a further engine object for the same jobs, for another thread's loop."""
        self._reset_after_fork()
        with self._guard:
            if self._shared_engine is not None:
                return self._shared_engine
            engine = self._make(create)
            if not engine.capabilities.processes:
                self._shared_engine = engine
            return engine

    async def engine(self) -> Engine:
        """Return this loop's engine, opened."""
        return (await self._use()).engine

    async def follower(self) -> Follower:
        """Return what follows jobs for everything on this loop."""
        return (await self._use()).follower

    async def batcher(self) -> Batcher:
        """Return what stores the single jobs of this loop."""
        return (await self._use()).batcher

    async def close(self) -> None:
        """Close this loop's engine; the next use opens it again."""
        state = self._state()
        async with state.lock:
            await _close(state)

    async def hold(self) -> Engine:
        """Return this loop's engine, opened; it stays open until the last holder releases it."""
        opened = await self._open()
        self._state().holders += 1
        return opened.engine

    async def release(self) -> None:
        """End one `hold`; the last one closes the engine."""
        state = self._state()
        state.holders -= 1
        async with state.lock:
            if not state.holders and not state.borrowers:
                await _close(state)

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[BorrowedEngine]:
        """Use this loop's engine for a while; it stays open if other code has used it too."""
        opened = await self._open()
        state = self._state()
        state.borrowers += 1
        try:
            # A file that is moved away now must not be replaced by an empty one.
            yield BorrowedEngine(opened.engine, partial(self.make, create=False))
        finally:
            state.borrowers -= 1
            async with state.lock:
                if not state.holders and not state.borrowers and not state.is_used:
                    await _close(state)

    def end_waits(self) -> None:
        """End every wait on a loop that runs now, with `EngineClosed`; from any thread."""
        for loop, state in list(self._states.items()):
            if loop.is_running() and state.opened is not None:
                asyncio.run_coroutine_threadsafe(state.opened.follower.close(), loop)

    async def _use(self) -> _Opened:
        state = self._state()
        opened = state.opened or await self._open()
        state.is_used = True
        return opened

    def _state(self) -> _LoopState:
        self._reset_after_fork()
        loop = asyncio.get_running_loop()
        state = self._states.get(loop)
        if state is None:
            state = self._states[loop] = _LoopState()
        return state

    def _reset_after_fork(self) -> None:
        if self._process != os.getpid():
            self._reset()

    async def _open(self) -> _Opened:
        state = self._state()
        if state.opened is not None:
            return state.opened
        async with state.lock:
            if state.opened is None:
                engine = self.make()
                await engine.open()
                lifetime = _lifetime(engine)
                await anext(lifetime)
                state.opened = _Opened(engine, Follower(engine), Batcher(engine), lifetime)
            return state.opened


async def _close(state: _LoopState) -> None:
    opened, state.opened = state.opened, None
    state.is_used = False
    if opened is not None:
        await opened.follower.close()
        await opened.batcher.close()
        await anext(opened.lifetime, None)


async def _lifetime(engine: Engine) -> AsyncIterator[None]:
    """Close the engine when asked for the next value, or when the loop ends.

    `asyncio.run` finishes every asynchronous generator of its loop before it closes the loop; that
    is the last moment at which a program that did not close its service can close gracefully.
    """
    try:
        yield
    finally:
        if engine.capabilities.processes:
            await engine.close()


# -- overrides ---------------------------------------------------------------------------------


class EngineOverride(Protocol):
    """Replaces the engines of all services: how tests rebind a whole program.

    Code uses the innermost override that was entered around it (a context variable, so tasks and
    threads with a copied context use it too); code outside of all, for example in a plain thread,
    uses the one that was entered last. An override that has ended is used by no code, even where a
    context still names it.
    """

    @property
    def url(self) -> str:
        """The URL that a service reports for its jobs."""

    def engines_for(self, owner: object) -> LoopEngines:
        """Return the engines; `owner` is the service that asks."""


_entered: Final[list[EngineOverride]] = []
_around: Final[ContextVar[tuple[EngineOverride, ...]]] = ContextVar(
    "trellis_engine_overrides", default=()
)


def current_override() -> EngineOverride | None:
    """Return what replaces the engines of all services for this code, if anything does."""
    if not _entered:
        return None
    for override in reversed(_around.get()):
        if override in _entered:
            return override
    last = _entered[-1:]
    return last[0] if last else None


def enter_override(override: EngineOverride) -> None:
    """Replace the engines, first of all for the code around which the override is entered."""
    _entered.append(override)
    _around.set((*_still_entered(), override))


def leave_override(override: EngineOverride) -> None:
    """Restore what was in force before."""
    _entered.remove(override)
    _around.set(_still_entered())


@contextmanager
def using_override(override: EngineOverride) -> Iterator[None]:
    """Let the code inside use this override, even if another was entered since."""
    token = _around.set((*_around.get(), override))
    try:
        yield
    finally:
        _around.reset(token)


def _still_entered() -> tuple[EngineOverride, ...]:
    return tuple(each for each in _around.get() if each in _entered)
