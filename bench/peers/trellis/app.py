"""Trellis as people run it: typed payloads through the client, defaults throughout.

Its worker is `trellis worker bench.peers.trellis.app:service`, guardian included.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pydantic import BaseModel

from bench.peers.protocol import Order, stamped, started
from trellis import Service

service = Service("bench")


class Purchase(BaseModel):
    """A payload of everyday size."""

    order_id: int
    email: str
    lines: list[int]
    note: str


class Sent(BaseModel):
    """When `create` was called, by the clock that all processes share."""

    at: int


@service.job
async def noop(purchase: Purchase) -> None:
    """Do nothing but be counted."""
    started()


@service.job
async def stamp(sent: Sent) -> None:
    """Record how long the job waited for its start."""
    stamped(sent.at)


class Jobs:
    """Creates jobs."""

    async def create(self, order: Purchase) -> None:
        await noop.create(order)

    async def create_many(self, orders: Sequence[Purchase]) -> None:
        await noop.create_many(orders)

    async def stamp(self, sent: int) -> None:
        await stamp.create(Sent(at=sent))


def payload(order: Order) -> Purchase:
    return Purchase(**order)


async def migrate(url: str) -> None:
    command = [sys.executable, "-m", "trellis", "migrate", "--url", url]
    await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Jobs]:
    service.connection.point_at(url)
    async with service:
        yield Jobs()
