"""Where attempts ask for locks: the worker's own desk, and that of a handler run as a function.

A question is asked from any thread and answered by a future of `concurrent.futures`, so the same
desk serves coroutines, threads and, with another way to the worker, handler processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from trellis.core.job import Fence
from trellis.engines.port import Engine
from trellis.engines.values import LockHolder
from trellis.errors import EngineClosed

T = TypeVar("T")


class LockDesk(Protocol):
    """Takes and frees locks for attempts; any thread may ask."""

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Take a lock for this attempt; the answer is who has it, or None if it is ours now."""

    def free(self, fence: Fence, name: str) -> Future[bool]:
        """Give a lock of this attempt back."""


class EngineLocks:
    """The desk of a worker process: asks the engine, on the worker's loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Ask the engine for a lock."""
        return self._ask(self._engine.take_lock(name, fence.session, fence.token))

    def free(self, fence: Fence, name: str) -> Future[bool]:
        """Give a lock back to the engine."""
        return self._ask(self._engine.free_lock(name, fence.session, fence.token))

    def _ask(self, question: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:
            question.close()
            raise EngineClosed("The worker has ended, and its locks with it.") from None


class NobodyElse:
    """The desk of a handler that runs as a function: there is nobody to share with."""

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:  # noqa: ARG002 - as asked
        """Give everything."""
        return _answered(None)

    def free(self, fence: Fence, name: str) -> Future[bool]:  # noqa: ARG002 - as asked
        """Take everything back."""
        return _answered(True)


def _answered(answer: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(answer)
    return future
