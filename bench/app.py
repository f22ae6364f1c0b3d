"""The program that is measured: two services, each with one job type and nothing else.

`trellis worker bench.app:drains` runs jobs that do nothing; those of `bench.app:stamps` record
when they began.
"""

from __future__ import annotations

import time

from pydantic import BaseModel

from bench.floor_sqlite import PAYLOAD
from bench.marks import marker
from trellis import Service

drains = Service("bench")
stamps = Service("stamps")
_mark_latency = marker("latency")


class Order(BaseModel):
    """A payload of everyday size; as JSON it is as long as the floor's."""

    order_id: int
    email: str
    lines: list[int]
    note: str


class Sent(BaseModel):
    """When `create` was called, by the clock that all processes share."""

    at: int


@drains.job
async def noop(order: Order) -> None:
    """Do nothing."""


@stamps.job
async def stamp(sent: Sent) -> None:
    """Record how long the job waited for its start."""
    _mark_latency(time.monotonic_ns() - sent.at)


def make_orders(count: int) -> list[Order]:
    """Return payloads, one object each."""
    model = Order.model_validate_json(PAYLOAD)
    return [
        model.model_copy(update={"order_id": number}) for number in range(10_000, 10_000 + count)
    ]
