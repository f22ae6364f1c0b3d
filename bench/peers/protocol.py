"""The protocol between the benchmark and a peer: arguments in, one line of JSON out.

`python -m bench.peers.protocol <peer> <command> --url …` runs in the peer's own environment, so
this file, the peer's `app.py` and what they import here need nothing but the standard library and
that peer. What is timed is the same code for every system; a peer only defines how one job is
created, how many are, and how a worker runs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import time
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import cycle
from typing import Any, Final, Protocol, cast

from bench.floor_sqlite import PAYLOAD
from bench.marks import marker

Order = dict[str, Any]
#: An order in the form that a peer's calls take: the dictionary, or an object made of it.
Payload = Any
Answer = dict[str, float | int]

CALLERS: Final = 32
#: Jobs per call of a peer's bulk API.
PAGE: Final = 5_000
#: Payloads in memory; jobs beyond them get the same ones again.
_DIFFERENT: Final = 20_000

mark_start = marker("start")
mark_latency = marker("latency")


class Client(Protocol):
    """What creates jobs; `noop` takes an order, `stamp` the time at which it was sent."""

    async def create(self, order: Payload) -> object:
        """Create one job."""

    async def create_many(self, orders: Sequence[Payload]) -> object:
        """Create many jobs by the peer's bulk call."""

    async def stamp(self, sent: int) -> object:
        """Create a job that records how long it waited for its start."""


class Peer(Protocol):
    """What a peer's `app.py` has at its top level.

    It may have `payload` too, which makes of an order what its calls take: an application has such
    objects at hand, so they are made before the clock runs. Writing them as JSON is timed.
    """

    async def migrate(self, url: str) -> None:
        """Set up the peer's tables."""

    def client(self, url: str) -> AbstractAsyncContextManager[Client]:
        """Open a client with enough connections for all callers."""

    async def work(self, url: str) -> None:
        """Run a worker until the process is asked to end."""


def started() -> None:
    """Leave the mark of a handler that begins; every handler of every system calls it first."""
    mark_start(time.monotonic_ns())


def stamped(sent: int) -> None:
    """Leave the mark of a handler: how long its job waited for the start."""
    mark_latency(time.monotonic_ns() - sent)


async def create(client: Client, orders: Sequence[Payload], callers: int, seconds: float) -> Answer:
    """Let callers create one job after the other, each waiting for its own, for this long.

    A quarter of that time goes before the clock runs, so that all connections are open.
    """
    left = cycle(orders)

    async def call_after_call(end: float) -> int:
        count = 0
        while time.perf_counter() < end or not count:
            await client.create(next(left))
            count += 1
        return count

    async def all_callers(during: float) -> Answer:
        began = time.perf_counter()
        calls = (call_after_call(began + during) for _ in range(callers))
        count = sum(await asyncio.gather(*calls))
        return {"count": count, "seconds": time.perf_counter() - began}

    warm_up = await all_callers(seconds / 4)
    return await all_callers(seconds) if seconds else warm_up


async def bulk(client: Client, orders: Sequence[Payload], jobs: int, seconds: float) -> Answer:
    """Create jobs by bulk calls, page after page, until all are there or time is up."""
    count = 0
    began = time.perf_counter()
    while count < jobs and time.perf_counter() - began < seconds:
        some = orders[: jobs - count]
        await client.create_many(some)
        count += len(some)
    return {"count": count, "seconds": time.perf_counter() - began}


async def latency(client: Client, jobs: int) -> Answer:
    """Create single jobs, 10 to 30 ms apart, so that no polling runs in step with them."""
    gaps = random.Random(jobs)
    for _ in range(jobs):
        await client.stamp(time.monotonic_ns())
        await asyncio.sleep(gaps.uniform(0.01, 0.03))
    return {"count": jobs}


def make_orders(count: int) -> list[Order]:
    """Return payloads of everyday size, one object each."""
    model = json.loads(PAYLOAD)
    return [{**model, "order_id": number} for number in range(10_000, 10_000 + count)]


async def _with_client(peer: Peer, options: argparse.Namespace) -> Answer:
    shape = getattr(peer, "payload", dict)
    async with peer.client(options.url) as client:
        match options.command:
            case "create-one" | "create-32":
                orders = [shape(order) for order in make_orders(_DIFFERENT)]
                callers = CALLERS if options.command == "create-32" else 1
                return await create(client, orders, callers, options.seconds)
            case "bulk":
                orders = [shape(order) for order in make_orders(min(PAGE, options.jobs))]
                return await bulk(client, orders, options.jobs, options.seconds)
            case _:
                return await latency(client, options.jobs)


async def _answer(peer: Peer, options: argparse.Namespace) -> Answer:
    match options.command:
        case "migrate":
            await peer.migrate(options.url)
            return {}
        case "worker":
            await peer.work(options.url)
            return {}
        case _:
            return await _with_client(peer, options)


def _run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run on uvloop where the environment has it: the faster loop is every Python peer's best."""
    try:
        loops = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(work)
    return cast("Answer", loops.run(work))


def main() -> None:
    """Run one command of one peer."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.protocol")
    parser.add_argument("peer")
    commands = ("migrate", "create-one", "create-32", "bulk", "latency", "worker")
    parser.add_argument("command", choices=commands)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    peer = cast("Peer", importlib.import_module(f"bench.peers.{options.peer}.app"))
    print(json.dumps(_run(_answer(peer, options))), flush=True)


if __name__ == "__main__":
    main()
