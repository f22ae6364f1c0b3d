"""The service of the demo. Workers import it like any other program's service.

Handlers that must still be at work when something happens wait for a file, so that the demo decides
who is late and nothing rests on a sleep being long enough.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from trellis.core.retry import Retry
from trellis.declaration.per_key import PerKey
from trellis.service import Service
from trellis.worker.active_job import ActiveJob

app: Final = Service("demo")

#: How long the shaky service is left alone after its first and its second failure.
BACKOFF: Final = ("200ms", "400ms")
#: How often a job may take its process down.
MOST_CRASHES: Final = 2
_SOON: Final = Retry.fixed("100ms")
_FRAME: Final = 0.1
_LOOK_EVERY: Final = 0.02


class Picture(BaseModel):
    """A picture, and the album to which a line is added whenever it is made smaller."""

    number: int
    album: Path


class Deposit(BaseModel):
    """Money for an account; deposits to one account must not overlap."""

    account: str
    number: int
    #: Where each deposit leaves the moments of its beginning and end.
    ledger: Path


class Order(BaseModel):
    """An order that cannot be shipped before its address file exists."""

    number: int
    address: Path


@app.job
async def thumbnail(picture: Picture) -> int:
    """Take a moment, as real work does."""
    await asyncio.sleep(0.1)
    _append(picture.album, str(picture.number))
    return picture.number


@app.job(retry=Retry.after(*BACKOFF))
async def call_shaky_service(job: ActiveJob[str]) -> str:
    """Fail twice, then work."""
    if job.attempt < job.max_attempts:
        raise ConnectionError(f"{job.payload} did not answer")
    return f"{job.payload} answered"


@app.job(per_key=PerKey.in_turn("account/{account}"))
async def deposit(job: ActiveJob[Deposit]) -> None:
    """Leave the moments of beginning and end in the ledger."""
    began = time.monotonic_ns()
    await asyncio.sleep(0.05)
    entry = job.payload
    ended = time.monotonic_ns()
    _append(entry.ledger, f"{entry.account} {entry.number} {began} {ended} {os.getpid()}")


@app.job(retry=Retry.fixed("100ms", attempts=2))
async def ship_order(order: Order) -> str:
    """Fail as long as the address is missing."""
    if not order.address.exists():
        raise LookupError(f"order {order.number} has no address")
    return f"order {order.number} shipped to {order.address.read_text(encoding='utf-8')}"


@app.job(isolation="process", retry=Retry.fixed("50ms", attempts=3), max_crashes=MOST_CRASHES)
def load_everything() -> None:
    """Be killed without a word, as by a kernel that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(retry=_SOON)
async def render_film(job: ActiveJob[int]) -> None:
    """Go through frames slowly, and say how far it is."""
    async for _ in job.track(range(job.payload), step="frames"):
        await asyncio.sleep(_FRAME)


@app.job(retry=_SOON)
def write_report(job: ActiveJob[Path]) -> str:
    """Work in a thread until this attempt may finish; return whose report it is."""
    _wait_for(job.payload / f"attempt-{job.attempt}")
    return f"the report of attempt {job.attempt}"


@app.job
def print_invoice(printer: Path) -> None:
    """Hang in a thread, which nothing can interrupt, until the printer works again."""
    _wait_for(printer)


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(_LOOK_EVERY)
