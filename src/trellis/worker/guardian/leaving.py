"""The replacement of a worker process whose handlers run on: it has lost threads or its last jobs.

A process with lost threads asks for a successor and works on with the slots it has. As soon as the
successor claims jobs, the old process is retired: it claims no more, lets its handlers finish as a
drained process does, and ends, and its lost threads end with it. So the worker always has slots.
Only when there are too many old processes must the oldest finish within the grace and hand back the
rest. Each of the processes has its own session; the guardian watches them all and settles what each
leaves. If the successor ends before it claims jobs, the old process works on and the next one is
started.

A process that has begun as many jobs as it may (`max_jobs`) claims no more. It asks for a successor
when at least half of its slots are free. For its sake no other process must hurry: if there are too
many, the successor waits until one of them has ended.

If an operator has drained one of the processes, all are drained and none is started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from trellis.worker.guardian.worker_process import WorkerProcess

#: How many retired processes may run beside the present one. Each takes the memory of a whole
#: process; a process that asks for a successor while there are this many works on until one ends.
_MOST: Final = 2
_logger = logging.getLogger("trellis.guardian")


class Leaving:
    """One worker process and the earlier ones in its place that still live."""

    def __init__(self, check_drained: Callable[[WorkerProcess], Awaitable[bool]]) -> None:
        self._check_drained = check_drained
        #: Whether an operator has drained one of the processes.
        self.is_drained = False
        self._living: set[WorkerProcess] = set()
        #: The retired processes and their supervisions, the oldest first.
        self._retired: dict[asyncio.Task[None], WorkerProcess] = {}
        #: The process that waits for its successor, and its supervision.
        self._old: tuple[WorkerProcess, asyncio.Task[None]] | None = None

    async def add(self, process: WorkerProcess) -> None:
        """Accept a process that was started."""
        self._living.add(process)
        if self.is_drained:
            await process.send("drain")

    async def remove(self, process: WorkerProcess) -> None:
        """Forget a process that has ended; if an operator drained it, drain the others."""
        self._living.discard(process)
        if process.was_drained:
            await self._drain()

    async def replaces(self, process: WorkerProcess, supervision: asyncio.Task[None]) -> bool:
        """Wait until the process has ended, or must be replaced while it lives: return which.

        When the process claims jobs, the one before it is retired.
        """
        working = asyncio.create_task(process.is_working.wait())
        wanted = asyncio.create_task(process.successor_wanted.wait())
        try:
            await _first(supervision, working)
            if working.done():
                await self._retire_old()
            await _first(supervision, wanted)
            while not supervision.done() and len(self._retired) >= _MOST:
                if process.replacement_reason == "lost_threads":
                    next(iter(self._retired.values())).must_leave.set()
                await _first(supervision, *self._retired)
        finally:
            working.cancel()
            wanted.cancel()
        await self._note_drain(process)
        if supervision.done() or self.is_drained:
            return False
        if process.replacement_reason == "lost_threads":
            level, why = logging.WARNING, "has lost threads"
        else:
            level, why = logging.INFO, "has begun as many jobs as it may"
        _logger.log(
            level,
            "Worker process %d %s: its successor is started. It ends when its other handlers have "
            "ended.",
            process.pid, why,
        )  # fmt: skip
        self._old = process, supervision
        return True

    async def _retire_old(self) -> None:
        if self._old is None:
            return
        process, supervision = self._old
        self._old = None
        self._retired[supervision] = process
        supervision.add_done_callback(self._retired.pop)
        await process.send("drain")
        await self._note_drain(process)

    async def _note_drain(self, process: WorkerProcess) -> None:
        if process in self._living and await self._check_drained(process):
            await self._drain()

    async def _drain(self) -> None:
        self.is_drained = True
        for process in tuple(self._living):
            await process.send("drain")


async def _first(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
