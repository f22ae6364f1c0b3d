"""The service of the demo. Worker processes import it like any other program's service."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from trellis.contract.per_key import PerKey
from trellis.core.retry import Retry
from trellis.service import Service
from trellis.worker.active import ActiveJob

app: Final = Service("demo")


class Deposit(BaseModel):
    """Money for an account; deposits to one account must not overlap."""

    account: str
    amount: int
    #: Where each deposit leaves the moments of its beginning and end.
    ledger: Path


class Order(BaseModel):
    """An order that cannot be shipped before its address file exists."""

    number: int
    address: Path


@app.job
async def thumbnail(number: int) -> int:
    """Take a moment, as real work does."""
    await asyncio.sleep(0.05)
    return number


@app.job(retry=Retry.after("200ms", "400ms"))
async def call_shaky_service(job: ActiveJob[str]) -> str:
    """Fail twice, then work."""
    if job.attempt < job.max_attempts:
        raise ConnectionError(f"{job.payload} did not answer")
    return f"{job.payload} answered attempt {job.attempt}"


@app.job(retry=Retry.fixed("100ms"))
async def render_film(job: ActiveJob[int]) -> int:
    """Go through frames slowly; return which process has finished them."""
    async for _ in job.track(range(job.payload), step="frames"):
        await asyncio.sleep(0.1)
    return os.getpid()


@app.job(retry=Retry.fixed("100ms"))
def write_report() -> int:
    """Work in a thread, which nothing can interrupt; return which process has finished."""
    time.sleep(1.0)
    return os.getpid()


@app.job(per_key=PerKey.in_turn("account/{account}"))
async def deposit(job: ActiveJob[Deposit]) -> None:
    """Leave the moments of beginning and end in the ledger."""
    began = time.monotonic_ns()
    await asyncio.sleep(0.05)
    line = f"{job.payload.account} {began} {time.monotonic_ns()} {os.getpid()}\n"
    with job.payload.ledger.open("a", encoding="utf-8") as ledger:
        ledger.write(line)


@app.job(retry=Retry.fixed("100ms", attempts=2))
async def ship_order(order: Order) -> str:
    """Fail as long as the address is missing."""
    return f"order {order.number} shipped to {order.address.read_text(encoding='utf-8')}"
