"""Oban for Python: 200 jobs at once, fetching after 1 ms, pool of 4 to 10 (32 for creating)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from bench.peers.protocol import CALLERS, Order, stamped, started


@worker(queue="default")
class Noop:
    async def process(self, job: Any) -> None:
        started()


@worker(queue="default")
class Stamp:
    async def process(self, job: Any) -> None:
        stamped(job.args["sent"])


class Jobs:
    """Creates jobs through an Oban that runs no queue."""

    def __init__(self, oban: Any) -> None:
        self._oban = oban
        self._noop: Any = Noop
        self._stamp: Any = Stamp

    async def create(self, order: Order) -> None:
        await self._oban.enqueue(self._noop.new(order))

    async def create_many(self, orders: Sequence[Order]) -> None:
        await self._oban.enqueue_many([self._noop.new(order) for order in orders])

    async def stamp(self, sent: int) -> None:
        await self._oban.enqueue(self._stamp.new({"sent": sent}))


async def migrate(url: str) -> None:
    async with AsyncConnectionPool(url, open=False) as pool:
        await install(pool)


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Jobs]:
    async with (
        AsyncConnectionPool(url, min_size=4, max_size=CALLERS, open=False) as pool,
        Oban(pool=pool) as oban,
    ):
        yield Jobs(oban)


async def work(url: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    queues = {"default": {"limit": 200, "debounce_interval": 0.001}}
    async with (
        AsyncConnectionPool(url, min_size=4, max_size=10, open=False) as pool,
        Oban(pool=pool, queues=queues),
    ):
        await ended.wait()
