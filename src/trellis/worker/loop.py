"""The protocol of a worker's loops: how a loop starts, fails, ends and stops.

A loop is a part of the worker that works in the background. The supervisor starts the loops and
decides in which order they stop. Most loops are one task and derive from `TaskLoop`. The executor
has many tasks and the lease keeper has a thread, so each of them implements `Loop` directly.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

_RESTART_PAUSE: Final = 1.0
_logger = logging.getLogger(__name__)


class Loop(Protocol):
    """Work in the background between `start` and `stop`."""

    def start(self) -> None:
        """Begin; return at once."""

    async def stop(self, limit: float | None = None) -> None:
        """End; return when nothing of the loop runs, or after `limit` seconds."""


class TaskLoop(ABC):
    """A loop that is one task.

    The loop is done when its body, `run`, returns. When the body raises an exception, the exception
    is logged and the body is called again after a pause: a worker without this loop would look
    alive and do nothing. `stop` cancels the body.
    """

    #: How long to wait before a body that has raised is called again, in seconds.
    restart_pause = _RESTART_PAUSE
    _task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run(self) -> None:
        """Do the work of the loop."""

    def start(self) -> None:
        """Begin; return at once."""
        name = f"trellis-{type(self).__name__}"
        body = run_until_done(self.run, name=type(self).__name__, pause=self.restart_pause)
        self._task = asyncio.create_task(body, name=name)

    async def wait(self, limit: float | None = None) -> bool:
        """Wait until the loop is done, at most `limit` seconds; return whether it is."""
        if self._task is None:
            return True
        done, _ = await asyncio.wait((self._task,), timeout=limit)
        return bool(done)

    def cancel(self) -> None:
        """Cancel the body; return at once."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self, limit: float | None = None) -> None:
        """Cancel the body; return when it has ended, or after `limit` seconds."""
        self.cancel()
        await self.wait(limit)


async def run_until_done(
    body: Callable[[], Awaitable[None]], *, name: str, pause: float = _RESTART_PAUSE
) -> None:
    """Call the body until it returns; log what it raises and call it again after the pause."""
    while True:
        try:
            await body()
        except Exception:
            _logger.exception("%s failed; it is started again in %g s.", name, pause)
        else:
            return
        await asyncio.sleep(pause)


async def stop_all(loops: Sequence[TaskLoop]) -> None:
    """Stop all loops. They are all cancelled even if the caller is cancelled while it waits."""
    for loop in loops:
        loop.cancel()
    for loop in loops:
        await loop.wait()


async def within(limit: float, work: Coroutine[Any, Any, object]) -> None:
    """Await the work, and cancel it after `limit` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await work
