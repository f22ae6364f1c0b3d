"""Awa: its Rust runtime with Python handlers, queue storage, 256 jobs at once, COPY for bulk.

Its enqueue shards stay at one, which keeps the order of jobs as all systems here do.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import awa

from bench.peers.protocol import CALLERS, Order, stamped, started

QUEUE = "bench"


@dataclass
class Noop:
    order_id: int
    email: str
    lines: list[int]
    note: str


@dataclass
class Stamp:
    sent: int


class Jobs:
    """Creates jobs."""

    def __init__(self, made: Any) -> None:
        self._client = made

    async def create(self, order: Noop) -> None:
        await self._client.insert(order, queue=QUEUE)

    async def create_many(self, orders: Sequence[Noop]) -> None:
        await self._client.enqueue_many_copy(list(orders), queue=QUEUE)

    async def stamp(self, sent: int) -> None:
        await self._client.insert(Stamp(sent), queue=QUEUE)


def payload(order: Order) -> Noop:
    return Noop(**order)


async def migrate(url: str) -> None:
    async with awa.AsyncClient(url) as made:
        await made.migrate()
        await made.install_queue_storage(schema="awa")


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Jobs]:
    async with awa.AsyncClient(url, max_connections=CALLERS) as made:
        yield Jobs(made)


async def work(url: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    made: Any = awa.AsyncClient(url, max_connections=24)

    @made.task(Noop, queue=QUEUE)
    async def noop(job: Any) -> None:
        started()

    @made.task(Stamp, queue=QUEUE)
    async def stamp(job: Any) -> None:
        stamped(job.args.sent)

    await made.start([{"name": QUEUE, "max_workers": 256}])
    await ended.wait()
    await made.shutdown()
    await made.close()
