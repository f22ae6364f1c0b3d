"""Lifespans of services in a handler process: entered when first needed, left at the end.

Each is entered and left in one task of its own, because what it holds open (a task group, a cancel
scope) may insist on that, while every attempt has a task of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

from trellis.contract.home import Lifespan


class Lifespans:
    """What is set up in this process."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def enter(self, make: Lifespan) -> Any:  # noqa: ANN401 - what the program's lifespan yields
        """Set up and return the state; raise what the lifespan raises."""
        state: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._keep(make, state), name="trellis-lifespan")
        await asyncio.wait((task, state), return_when=asyncio.FIRST_COMPLETED)
        if not state.done():
            state.cancel()
            task.result()
            raise RuntimeError("The lifespan ended before it yielded.")
        self._tasks.append(task)
        return state.result()

    async def leave(self) -> None:
        """Take everything down."""
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def _keep(self, make: Lifespan, state: asyncio.Future[Any]) -> None:
        async with make() as yielded:
            state.set_result(yielded)
            await self._over.wait()
