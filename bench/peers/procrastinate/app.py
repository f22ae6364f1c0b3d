"""Procrastinate: 20 jobs at once, finished jobs deleted, pool of 4 to 20 (32 for creating)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.protocol import CALLERS, Order, stamped, started


class Tasks:
    """The application and its two tasks."""

    def __init__(self, url: str, connections: int) -> None:
        self.app: Any = App(
            connector=PsycopgConnector(conninfo=url, min_size=4, max_size=connections)
        )
        self._noop: Any = self.app.task(name="noop")(noop)
        self._stamp: Any = self.app.task(name="stamp")(stamp)

    async def create(self, order: Order) -> None:
        await self._noop.defer_async(order=order)

    async def create_many(self, orders: Sequence[Order]) -> None:
        await self._noop.batch_defer_async(*({"order": order} for order in orders))

    async def stamp(self, sent: int) -> None:
        await self._stamp.defer_async(sent=sent)


async def noop(order: Order) -> None:
    started()


async def stamp(sent: int) -> None:
    stamped(sent)


async def migrate(url: str) -> None:
    tasks = Tasks(url, connections=4)
    async with tasks.app.open_async():
        await tasks.app.schema_manager.apply_schema_async()


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Tasks]:
    tasks = Tasks(url, connections=CALLERS)
    async with tasks.app.open_async():
        yield tasks


async def work(url: str) -> None:
    tasks = Tasks(url, connections=20)
    async with tasks.app.open_async():
        await tasks.app.run_worker_async(concurrency=20, delete_jobs="always")
