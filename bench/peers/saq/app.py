"""SAQ on PostgreSQL: 50 jobs at once, a pool of 4 to 20 (32 for creating) without check-outs.

It has no bulk call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from psycopg_pool import AsyncConnectionPool
from saq import Worker
from saq.queue.postgres import PostgresQueue

from bench.peers.protocol import CALLERS, Order, stamped, started


class Jobs:
    """Creates jobs."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def create(self, order: Order) -> None:
        await self._queue.enqueue("noop", order=order)

    async def stamp(self, sent: int) -> None:
        await self._queue.enqueue("stamp", sent=sent)


async def noop(context: Any, *, order: Order) -> None:
    started()


async def stamp(context: Any, *, sent: int) -> None:
    stamped(sent)


def _queue(url: str, connections: int) -> Any:
    pool: Any = AsyncConnectionPool(url, min_size=4, max_size=connections, open=False)
    return PostgresQueue(pool=pool, manage_pool_lifecycle=True)


async def migrate(url: str) -> None:
    async with client(url):
        pass  # connecting sets up the tables


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Jobs]:
    queue = _queue(url, CALLERS)
    await queue.connect()
    try:
        yield Jobs(queue)
    finally:
        await queue.disconnect()


async def work(url: str) -> None:
    queue = _queue(url, 20)
    await queue.connect()
    worker: Any = Worker(queue, functions=[noop, stamp], concurrency=50)
    await worker.start()
