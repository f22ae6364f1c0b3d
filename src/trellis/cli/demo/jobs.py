"""The service of the demo. Workers import it like the service of any other program.

Handlers that must still run when something happens wait for a file, so that no scene depends on the
length of a sleep.
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

#: The waits after the first and the second failure of the unreliable service.
BACKOFF: Final = ("200ms", "400ms")
#: How often a job may kill its process.
MAX_CRASHES: Final = 2
_RETRY_SOON: Final = Retry.fixed("100ms")
_FRAME: Final = 0.1
_POLL_SECONDS: Final = 0.02


class Picture(BaseModel):
    """A picture, and the file to which every run of its job adds a line."""

    number: int
    album: Path


class Deposit(BaseModel):
    """A deposit to an account; deposits to one account must not overlap."""

    account: str
    number: int
    #: The file to which each deposit writes the times of its beginning and end.
    ledger: Path


class Order(BaseModel):
    """An order that cannot be shipped before its address file exists."""

    number: int
    address: Path


@app.job
async def thumbnail(picture: Picture) -> int:
    """Wait a little, as real work does."""
    await asyncio.sleep(0.1)
    _append(picture.album, str(picture.number))
    return picture.number


@app.job(retry=Retry.after(*BACKOFF))
async def call_unreliable_service(job: ActiveJob[str]) -> str:
    """Fail twice, then succeed."""
    if job.attempt < job.max_attempts:
        raise ConnectionError(f"{job.payload} did not answer")
    return f"{job.payload} answered"


@app.job(per_key=PerKey.in_turn("account/{account}"))
async def deposit(job: ActiveJob[Deposit]) -> None:
    """Write the times of beginning and end to the ledger."""
    began = time.monotonic_ns()
    await asyncio.sleep(0.05)
    entry = job.payload
    ended = time.monotonic_ns()
    _append(entry.ledger, f"{entry.account} {entry.number} {began} {ended} {os.getpid()}")


@app.job(retry=Retry.fixed("100ms", attempts=2))
async def ship_order(order: Order) -> str:
    """Fail while the address is missing."""
    if not order.address.exists():
        raise LookupError(f"order {order.number} has no address")
    return f"order {order.number} shipped to {order.address.read_text(encoding='utf-8')}"


@app.job(isolation="process", retry=Retry.fixed("50ms", attempts=3), max_crashes=MAX_CRASHES)
def load_everything() -> None:
    """Kill this process, as a kernel that is out of memory does."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(retry=_RETRY_SOON)
async def render_film(job: ActiveJob[int]) -> None:
    """Render frames slowly, and report progress."""
    async for _ in job.track(range(job.payload), step="frames"):
        await asyncio.sleep(_FRAME)


@app.job(retry=_RETRY_SOON)
def write_report(job: ActiveJob[Path]) -> str:
    """Block a thread until this attempt may finish; return which attempt wrote the report."""
    _wait_for(job.payload / f"attempt-{job.attempt}")
    return f"the report of attempt {job.attempt}"


@app.job
def print_invoice(printer: Path) -> None:
    """Block a thread, which cannot be interrupted, until the printer works again."""
    _wait_for(printer)


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(_POLL_SECONDS)
