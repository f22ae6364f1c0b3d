"""Chancy: the asyncio executor with 200 jobs at once, eager polling, results sent every 0.1 s."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Job, Queue, Worker

from bench.peers.protocol import CALLERS, Order, stamped, started


class Jobs:
    """Creates jobs."""

    def __init__(self, chancy: Any) -> None:
        self._chancy = chancy
        self._noop: Any = Job.from_func(noop)
        self._stamp: Any = Job.from_func(stamp)

    async def create(self, order: Order) -> None:
        await self._chancy.push(self._noop.with_kwargs(order=order))

    async def create_many(self, orders: Sequence[Order]) -> None:
        jobs = [self._noop.with_kwargs(order=order) for order in orders]
        async for _ in self._chancy.push_many(jobs, batch_size=len(jobs)):
            pass

    async def stamp(self, sent: int) -> None:
        await self._chancy.push(self._stamp.with_kwargs(sent=sent))


async def noop(*, order: Order) -> None:
    started()


async def stamp(*, sent: int) -> None:
    stamped(sent)


def _chancy(url: str, connections: int) -> Any:
    log = logging.getLogger("chancy")
    log.setLevel(logging.WARNING)
    return Chancy(url, max_connection_pool_size=connections, log=log)


async def migrate(url: str) -> None:
    async with _chancy(url, 4) as chancy:
        await chancy.migrate()
        await chancy.declare(
            Queue(
                "default",
                concurrency=200,
                executor=Chancy.Executor.Async,
                polling_interval=1,
                eager_polling=True,
            )
        )


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Jobs]:
    async with _chancy(url, CALLERS) as chancy:
        yield Jobs(chancy)


async def work(url: str) -> None:
    async with _chancy(url, 10) as chancy:
        worker: Any = Worker(chancy)
        worker.send_outgoing_interval = 0.1
        async with worker:
            await worker.wait_for_shutdown()
