"""taskiq-nats with its pull consumer, 100 tasks at once, uvloop.

A fetch of 100 messages waits until there are 100, so only drains use it; otherwise one message is
fetched at a time, its default. (With the push consumer, a program that creates tasks is given
messages, too, and never runs them.) It keeps nothing: no result backend, and no record of a task
once it is acknowledged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from taskiq.api import run_receiver_task
from taskiq_nats import PullBasedJetStreamBroker

from bench.peers.protocol import Order, stamped, started

#: The variable with the number of messages of one fetch.
FETCH: Final = "BENCH_FETCH"
_AT_ONCE: Final = 100
#: Calls that wait for the server at the same time while the backlog is made; it has no bulk call.
_CALLERS: Final = 64


async def noop(order: Order) -> None:
    started()


async def stamp(sent: int) -> None:
    stamped(sent)


class Jobs:
    """Creates tasks."""

    def __init__(self, broker: Any) -> None:
        self._noop, self._stamp = broker.find_task("noop"), broker.find_task("stamp")

    async def create(self, order: Order) -> None:
        await self._noop.kiq(order)

    async def create_many(self, orders: Sequence[Order]) -> None:
        left = iter(orders)

        async def call_after_call() -> None:
            for order in left:
                await self._noop.kiq(order)

        await asyncio.gather(*(call_after_call() for _ in range(_CALLERS)))

    async def stamp(self, sent: int) -> None:
        await self._stamp.kiq(sent)


def _broker(url: str, fetch: int = 1) -> Any:
    broker: Any = PullBasedJetStreamBroker(url, pull_consume_batch=fetch)
    broker.register_task(noop, task_name="noop")
    broker.register_task(stamp, task_name="stamp")
    return broker


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Jobs]:
    broker = _broker(url)
    await broker.startup()
    try:
        yield Jobs(broker)
    finally:
        await broker.shutdown()


async def work(url: str) -> None:
    """Work until the process is asked to end."""
    await run_receiver_task(
        _broker(url, int(os.environ.get(FETCH, "1"))),
        max_async_tasks=_AT_ONCE,
        max_prefetch=_AT_ONCE,
        run_startup=True,
    )
