"""A thread with an event loop, by which plain functions call coroutines.

Every `_sync` method sends its coroutine to this loop and waits. The thread starts at the first
call; a forked child starts another one. A call from a running event loop is refused, because the
coroutine may need that loop. `async_block` makes a block for `async with` that says so in a plain
`with`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - registers an exit function, see `_close_at_exit`
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import wraps
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    TypeVar,
)

from trellis.errors import CalledFromLoop, ConfigurationError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_CLOSE_TIMEOUT: Final = 5.0
#: The thread that waits for the coroutine which runs on the portal's loop.
_waiting_thread: Final[ContextVar[int | None]] = ContextVar("trellis_waiting", default=None)


class Portal:
    """Runs coroutines for plain functions."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parents_loop: asyncio.AbstractEventLoop | None = None
        self._closes_at_exit = False

    def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a coroutine function on the portal's loop and return its result."""
        self.refuse_loops(getattr(function, "__name__", "the coroutine"))
        context = copy_context()
        context.run(_waiting_thread.set, threading.get_ident())
        future = context.run(self.start, function(*args, **kwargs))
        try:
            return future.result()
        except BaseException:
            # Ctrl-C reaches only the waiting thread; the coroutine must end as well.
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the portal's loop, in a copy of the caller's context."""
        return asyncio.run_coroutine_threadsafe(work, self._open())

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
            "by a coroutine on Trellis's own loop, where it would wait for itself without end"
            if running is self._loop
            else "in a running event loop and would block everything on it"
        )
        raise CalledFromLoop(f"{name}_sync was called {where}. Write: await {name}(...)")

    def close(self) -> None:
        """Stop the loop gracefully: its engines are closed. The next call starts another loop."""
        with self._starting:
            thread, loop, self._thread, self._loop = self._thread, self._loop, None, None
        if thread is not None and loop is not None:
            with suppress(RuntimeError):  # the loop has already ended
                loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLOSE_TIMEOUT)

    def forget(self) -> None:
        """Reset in a forked child: the thread, and a lock it may hold, belong to the parent."""
        self._starting = threading.Lock()
        # Kept, because the garbage collector would close it, and the parent uses its selector.
        self._parents_loop = self._loop
        self._thread = self._loop = None

    def _open(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="trellis-portal", daemon=True
                )
                self._thread.start()
                self._close_at_exit()
            return self._loop

    def _close_at_exit(self) -> None:
        if not self._closes_at_exit:
            self._closes_at_exit = True
            # Engines need their threads to close, and `atexit` is too late for that. So this must
            # run earlier, and before the exit function of `concurrent.futures`, imported above.
            getattr(threading, "_register_atexit", atexit.register)(self.close)

    def _dismiss(self, items: AsyncIterator[Any]) -> None:
        """Close an iterator without waiting: the garbage collector may call this in any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and the iterator with it
                loop.call_soon_threadsafe(lambda: loop.create_task(_close(items)))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then end it as `asyncio.run` does, but for one step.

    The threads of its pool end with the interpreter: waiting for them here would take another
    thread, and at the exit of the interpreter none can be started.
    """
    try:
        loop.run_forever()
    finally:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


def waiting_caller() -> object:
    """Return the caller that waits for this code: a thread at the portal, else the running task."""
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
    """Return the `_sync` twin of an asynchronous method."""

    @wraps(method)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return portal.call(method, self, *args, **kwargs)

    return _named(twin, method)


def iterated(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[S, P], Iterator[T]]:
    """Return the `_sync` twin of a method that returns an asynchronous iterator."""

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


class AsyncBlock(AbstractAsyncContextManager[T_co, bool | None], Generic[T_co]):
    """A context manager for `async with` only; a plain `with` raises an error with advice."""

    def __init__(self, inner: AbstractAsyncContextManager[T_co], advice: str) -> None:
        self._inner = inner
        self._advice = advice

    async def __aenter__(self) -> T_co:
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # type checkers already reject a plain `with`

        def __enter__(self) -> NoReturn:
            raise ConfigurationError(self._advice)

        def __exit__(self, *_: object) -> None:
            """Do nothing; Python looks for this method before it calls `__enter__`."""


def async_block(
    advice: str,
) -> Callable[[Callable[P, AsyncIterator[T_co]]], Callable[P, AsyncBlock[T_co]]]:
    """Make an `AsyncBlock` of an async generator; `advice` is the error for a plain `with`."""

    def decorate(
        function: Callable[P, AsyncIterator[T_co]],
    ) -> Callable[P, AsyncBlock[T_co]]:
        make = asynccontextmanager(function)

        @wraps(function)
        def open_block(*arguments: P.args, **options: P.kwargs) -> AsyncBlock[T_co]:
            return AsyncBlock(make(*arguments, **options), advice)

        return open_block

    return decorate
