"""PgQueuer: batches of 250 on one asyncpg connection, tables as durable as it makes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries

from bench.peers.protocol import CALLERS, Order, stamped, started

BATCH = 250


class Jobs:
    """Creates jobs through a pool."""

    def __init__(self, queries: Any) -> None:
        self._queries = queries

    async def create(self, order: Order) -> None:
        await self._queries.enqueue("noop", json.dumps(order).encode())

    async def create_many(self, orders: Sequence[Order]) -> None:
        payloads = [json.dumps(order).encode() for order in orders]
        await self._queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    async def stamp(self, sent: int) -> None:
        await self._queries.enqueue("stamp", str(sent).encode())


async def migrate(url: str) -> None:
    connection = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Jobs]:
    async with asyncpg.create_pool(url, min_size=1, max_size=CALLERS) as pool:
        yield Jobs(Queries(AsyncpgPoolDriver(pool)))


async def work(url: str) -> None:
    connection = await asyncpg.connect(url)
    worker: Any = PgQueuer(AsyncpgDriver(connection))

    @worker.entrypoint("noop")
    async def noop(job: Any) -> None:
        json.loads(job.payload)
        started()

    @worker.entrypoint("stamp")
    async def stamp(job: Any) -> None:
        stamped(int(job.payload))

    await worker.run(batch_size=BATCH)
