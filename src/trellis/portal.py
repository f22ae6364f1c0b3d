"""One thread with an event loop, through which plain functions call coroutines.

No logic is written twice: every `_sync` method sends its coroutine here and waits. The thread
starts at the first call; a forked child starts its own. A call from a running event loop is
refused, because the coroutine it would wait for may need that very loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - registers its own goodbye, see `_close_at_exit`
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from trellis.errors import CalledFromLoop

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
_GOODBYE: Final = 5.0
#: The thread that waits for what runs here on the portal's loop.
_waiting_thread: Final[ContextVar[int | None]] = ContextVar("trellis_waiting", default=None)


class Portal:
    """The way from plain functions to coroutines."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parents_loop: asyncio.AbstractEventLoop | None = None
        self._says_goodbye = False

    def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a coroutine function on the portal's loop and return what it returns."""
        self.refuse_loops(getattr(function, "__name__", "the coroutine"))
        context = copy_context()
        context.run(_waiting_thread.set, threading.get_ident())
        future = context.run(
            asyncio.run_coroutine_threadsafe, function(*args, **kwargs), self._open()
        )
        try:
            return future.result()
        except BaseException:
            # Ctrl-C reaches the waiting thread only; what it waits for must end, too.
            future.cancel()
            raise

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Go through an asynchronous iterator on the portal's loop."""
        try:
            while (found := self.call(_next, items)) is not None:
                yield found[0]
        finally:
            self._dismiss(items)

    def refuse_loops(self, name: str) -> None:
        """Refuse to block an event loop that runs in this thread."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        where = (
            "by a coroutine on Trellis's own loop and would wait for itself for ever"
            if running is self._loop
            else "in a running event loop and would block everything on it"
        )
        raise CalledFromLoop(f"{name}_sync was called {where}. Write: await {name}(...)")

    def close(self) -> None:
        """End the loop in order: its engines are closed. The next call starts another."""
        with self._starting:
            thread, loop, self._thread, self._loop = self._thread, self._loop, None, None
        if thread is not None and loop is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(loop.stop)
            thread.join(_GOODBYE)

    def forget(self) -> None:
        """Start anew in a forked child; the thread, and a lock it may hold, are the parent's."""
        self._starting = threading.Lock()
        # Kept, because the collector would close it, and it shares its selector with the parent.
        self._parents_loop = self._loop
        self._thread = self._loop = None

    def _open(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_live, args=(self._loop,), name="trellis-portal", daemon=True
                )
                self._thread.start()
                self._close_at_exit()
            return self._loop

    def _close_at_exit(self) -> None:
        if not self._says_goodbye:
            self._says_goodbye = True
            # Engines need threads to close, which are refused once `atexit` is reached; so this
            # must come before, and before the goodbye of `concurrent.futures`, imported above.
            getattr(threading, "_register_atexit", atexit.register)(self.close)

    def _dismiss(self, items: AsyncIterator[Any]) -> None:
        """End an iterator without waiting: the collector may ask for it, in any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and everything on it
                loop.call_soon_threadsafe(lambda: loop.create_task(_close(items)))


def _live(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then end what is left on it as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


def whose_turn() -> object:
    """Return who cannot go on before this code does: a waiting thread, else the running task."""
    try:
        return _waiting_thread.get() or asyncio.current_task()
    except RuntimeError:  # no loop here
        return threading.get_ident()


#: The portal of this process.
portal: Final = Portal()
call: Final = portal.call
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=portal.forget)


def synced(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """Return the twin of an asynchronous method for code without an event loop."""

    @wraps(method)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return portal.call(method, self, *args, **kwargs)

    return _named(twin, method)


def iterated(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[S, P], Iterator[T]]:
    """Return the twin of a method that iterates asynchronously."""

    @wraps(method)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        portal.refuse_loops(method.__name__)
        return portal.each(method(self, *args, **kwargs))

    return _named(twin, method)


def _named(twin: Callable[P, T], method: Callable[..., object]) -> Callable[P, T]:
    twin.__name__ = f"{method.__name__}_sync"
    twin.__qualname__ = f"{method.__qualname__}_sync"
    twin.__doc__ = f"`{method.__name__}`, for code without an event loop."
    return twin
