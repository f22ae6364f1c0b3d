"""The handler processes of one worker: started when needed, kept for a while, never too many.

A process serves one attempt at a time and is used again only after a run in which nothing was odd.
A suspect gets a fresh one: if that dies, nobody else can be to blame.
"""

from __future__ import annotations

import asyncio
from typing import Final

from trellis.contract.importable import HandlerName
from trellis.worker.isolation.process import HandlerProcess

#: How long a process without work is kept, in seconds.
KEPT: Final = 60.0
#: How long one may take to begin, and to leave: lifespans may have something to close.
_START: Final = 60.0
_FAREWELL: Final = 5.0
#: How long the worker waits for those that are leaving when it ends itself.
_LAST_MOMENT: Final = 1.0


class NotStarted(Exception):
    """No process could be started; the message says why."""


class HandlerProcesses:
    """Processes to run attempts in, at most as many as there are slots."""

    def __init__(self, size: int, *, kept: float = KEPT) -> None:
        self._size = size
        self._kept = kept
        #: Those without work, the one used last at the end, and what will end them.
        self._idle: dict[HandlerProcess, asyncio.TimerHandle] = {}
        self._living: set[HandlerProcess] = set()
        self._is_stopping = False

    async def take(self, name: HandlerName, *, fresh: bool) -> HandlerProcess:
        """Return a process for an attempt: one that knows this handler, any, or a new one."""
        process = None if fresh else self._choose(name)
        if process is None:
            process = await self._start()
        process.knows.add(name)
        return process

    def give_back(self, process: HandlerProcess) -> None:
        """Keep a process after a run in which nothing was odd."""
        if self._is_stopping:
            self.dismiss(process)
        elif not process.ended.done():
            loop = asyncio.get_running_loop()
            self._idle[process] = loop.call_later(self._kept, self.dismiss, process)

    def dismiss(self, process: HandlerProcess) -> None:
        """Have a process end in order; after a moment it is killed."""
        self._forget_idle(process)
        process.say("leave")
        asyncio.get_running_loop().call_later(_FAREWELL, process.kill)

    def tell_stopping(self) -> None:
        """Pass on that the worker was told to stop; what has no work ends now."""
        self._is_stopping = True
        for process in tuple(self._living):
            if process in self._idle:
                self.dismiss(process)
            else:
                process.say("stopping")

    async def close(self) -> None:
        """End all processes; afterwards none is left."""
        self._is_stopping = True
        for process in tuple(self._living):
            self.dismiss(process)
        await self._until_gone()
        for process in self._living:
            process.kill()
        await self._until_gone()

    # -- inside --------------------------------------------------------------------------------

    def _choose(self, name: HandlerName) -> HandlerProcess | None:
        ready = [*self._idle]
        if not ready:
            return None
        knowing = [process for process in ready if name in process.knows]
        process = (knowing or ready)[-1]
        self._forget_idle(process)
        return process

    async def _start(self) -> HandlerProcess:
        if len(self._living) >= self._size and self._idle:
            self.dismiss(next(iter(self._idle)))
        try:
            process = HandlerProcess()
        except OSError as error:
            raise NotStarted(str(error)) from error
        self._living.add(process)
        process.ended.add_done_callback(lambda _: self._forget(process))
        await asyncio.wait((process.ready,), timeout=_START)
        if not process.ready.done():
            process.kill()
            raise NotStarted(f"it was not ready after {_START:.0f} s")
        if not process.ready.result():
            raise NotStarted((await process.ended).evidence())
        return process

    def _forget(self, process: HandlerProcess) -> None:
        self._living.discard(process)
        self._forget_idle(process)

    def _forget_idle(self, process: HandlerProcess) -> None:
        timer = self._idle.pop(process, None)
        if timer is not None:
            timer.cancel()

    async def _until_gone(self) -> None:
        gone = [process.ended for process in self._living]
        if gone:
            await asyncio.wait(gone, timeout=_LAST_MOMENT)
