"""A program as its authors wrote it: it knows nothing of tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trellis import ActiveJob, Retry, Service

SENT: list[str] = []
OPENED: list[str] = []

shop = Service("shop", "sqlite:////nowhere/shop.db")
post = Service("post", "sqlite:////elsewhere/post.db")


@dataclass(frozen=True)
class Order:
    number: int
    customer: str


@post.lifespan
@asynccontextmanager
async def post_office() -> AsyncIterator[str]:
    OPENED.append("opened")
    yield "counter 1"
    OPENED.append("closed")


@post.job
def send(job: ActiveJob[str]) -> str:
    SENT.append(job.payload)
    return f"{job.payload} from {job.state}"


@shop.job(retry=Retry.after("5s", "30s"))
async def confirm(order: Order) -> int:
    await send.create(f"order {order.number} to {order.customer}")
    return order.number


@shop.job
def remind(customer: str) -> None:
    send.create_sync(f"reminder to {customer}")


@shop.job(isolation="process")
def whose_process() -> int:
    return os.getpid()


async def checkout(number: int, customer: str) -> str:
    ref = await confirm.create(Order(number, customer), tags={"customer": customer})
    await remind.create(customer, delay="3d")
    return ref.id


def checkout_sync(number: int, customer: str) -> str:
    return confirm.create_sync(Order(number, customer)).id
