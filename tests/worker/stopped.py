"""Handlers that end only through what Trellis raises in them: by coroutine, thread and process.

Each can be stopped in three ways: `track`, `raise_if_cancelled` and the wait for a lock. The
coroutines ignore their cancellation by asyncio, as code with a broad `except` does. The payload is
the beginning of the names of two files: one shows that the handler has begun, one what it caught.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from trellis import ActiveJob, Cancelled, Retry, Service, Stopped

shop = Service("shop", "sqlite:///trellis.db")
#: The lock for which handlers wait.
LOCK: Final = "ledger"
KINDS: Final = ("coroutine", "thread", "process")
WAYS: Final = ("track", "look", "lock")
LATER: Final = Retry.fixed("2h", attempts=3)
_PAUSE: Final = 0.002


def write(path: str, text: str = "") -> None:
    """Write a file that is complete as soon as it is there."""
    draft = Path(f"{path}.{os.getpid()}")
    draft.write_text(text)
    draft.rename(path)


@contextmanager
def reporting(job: ActiveJob[str]) -> Iterator[None]:
    """Write that the handler has begun, and what it caught in the end."""
    write(f"{job.payload}.begun")
    try:
        yield
    except (Cancelled, Stopped) as error:
        write(f"{job.payload}.got", json.dumps([type(error).__name__, job.cancelled, job.stopping]))
        raise


def got(path: str) -> list[Any] | None:
    """Return what the handler got, once it has reported it."""
    report = Path(f"{path}.got")
    return json.loads(report.read_text()) if report.exists() else None


async def insist(part: Callable[[], Awaitable[None]]) -> None:
    """Begin again after a cancellation by asyncio."""
    while True:
        try:
            await part()
        except asyncio.CancelledError:
            continue
        return


def track(job: ActiveJob[str]) -> None:
    with reporting(job):
        for _ in job.track(count()):
            time.sleep(_PAUSE)


def look(job: ActiveJob[str]) -> None:
    with reporting(job):
        while True:
            job.raise_if_cancelled()
            time.sleep(_PAUSE)


def lock(job: ActiveJob[str]) -> None:
    with reporting(job), job.lock(LOCK):
        pass


async def track_async(job: ActiveJob[str]) -> None:
    async def part() -> None:
        async for _ in job.track(count()):
            await asyncio.sleep(_PAUSE)

    with reporting(job):
        await insist(part)


async def look_async(job: ActiveJob[str]) -> None:
    async def part() -> None:
        while True:
            job.raise_if_cancelled()
            await asyncio.sleep(_PAUSE)

    with reporting(job):
        await insist(part)


async def lock_async(job: ActiveJob[str]) -> None:
    async def part() -> None:
        async with job.lock(LOCK):
            pass

    with reporting(job):
        await insist(part)


_FUNCTIONS: Final[dict[str, Callable[[ActiveJob[str]], Any]]] = {
    "track": track, "look": look, "lock": lock,
}  # fmt: skip
_COROUTINES: Final[dict[str, Callable[[ActiveJob[str]], Any]]] = {
    "track": track_async, "look": look_async, "lock": lock_async,
}  # fmt: skip

#: A test that wants its worker to fail jobs at a shutdown puts this file into its folder.
FAIL_AT_SHUTDOWN: Final = "fail_at_shutdown"
_on_shutdown: Final = "fail" if Path(FAIL_AT_SHUTDOWN).exists() else "requeue"

for _way in WAYS:
    _function = _FUNCTIONS[_way]
    shop.job(name=f"coroutine-{_way}", retry=LATER, cancel_grace="1h", on_shutdown=_on_shutdown)(
        _COROUTINES[_way]
    )
    shop.job(name=f"thread-{_way}", retry=LATER, cancel_grace="1h", on_shutdown=_on_shutdown)(
        _function
    )
    _apart = shop.job(
        name=f"process-{_way}",
        retry=LATER,
        cancel_grace="1h",
        on_shutdown=_on_shutdown,
        isolation="process",
    )(_function)
    setattr(sys.modules[__name__], _way, _apart)  # where another process finds it
