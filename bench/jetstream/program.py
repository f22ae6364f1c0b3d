"""The program of one system: `python -m bench.jetstream.program <module> <command> --url …`.

It runs in the environment of that system and answers with one line of JSON. What is timed is the
same code for every system.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from typing import Any, Final, cast

from bench.peers.protocol import Client, Peer, _run, bulk, latency, make_orders

_PAGE: Final = 5_000
_WARM_UP: Final = 50


async def create(client: Client, orders: list[Any]) -> dict[str, float]:
    """Create one job after the other; return how long a call takes, in milliseconds."""
    took = []
    for number, order in enumerate(orders):
        began = time.perf_counter()
        await client.create(order)
        if number >= _WARM_UP:
            took.append(1000 * (time.perf_counter() - began))
    cuts = statistics.quantiles(took, n=100)
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


async def _answer(peer: Peer, options: argparse.Namespace) -> dict[str, float]:
    if options.command == "work":
        await peer.work(options.url)
        return {}
    shape = getattr(peer, "payload", dict)
    async with peer.client(options.url) as client:
        if options.command == "create":
            orders = [shape(order) for order in make_orders(options.jobs + _WARM_UP)]
            return await create(client, orders)
        if options.command == "fill":
            orders = [shape(order) for order in make_orders(min(_PAGE, options.jobs))]
            return await bulk(client, orders, options.jobs, 3600.0)
        return await latency(client, options.jobs)


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m bench.jetstream.program")
    parser.add_argument("module")
    parser.add_argument("command", choices=("create", "fill", "latency", "work"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    peer = cast("Peer", importlib.import_module(options.module))
    print(json.dumps(_run(_answer(peer, options))), flush=True)


if __name__ == "__main__":
    main()
