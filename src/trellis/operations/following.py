"""Following jobs as they go on: until they end, and line by line of their logs.

A hint from the engine makes it quick, a look now and then makes it sure; only what was loaded is
believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from trellis.core.job import JobId, JobRecord
from trellis.core.states import LIVE
from trellis.engines.port import Engine
from trellis.engines.values import LogEntry
from trellis.errors import EngineUnavailable, JobNotFound

_SOON: Final = 0.05
_LATE: Final = 1.0
_LINES: Final = 1000


async def until_ended(engine: Engine, job_id: JobId) -> JobRecord:
    """Return the job once it has ended."""
    async with _news(engine) as news:
        pause = _SOON
        while True:
            news.clear()
            record = (await engine.load([job_id])).records[0]
            if record is None:
                raise JobNotFound(f"Job {job_id} was removed meanwhile.", job_id=job_id)
            if record.head.state not in LIVE:
                return record
            await _wait(news, pause)
            pause = min(pause * 1.5, _LATE)


async def follow_logs(engine: Engine, job_id: JobId, after: int = 0) -> AsyncIterator[LogEntry]:
    """Yield the lines of a job's log as they come, until the job has ended."""
    async with _news(engine) as news:
        pause = _SOON
        while True:
            news.clear()
            # Asked before the lines: a job that had ended says nothing after them.
            record = (await engine.load([job_id])).records[0]
            lines = await engine.logs(job_id, after, _LINES)
            for line in lines:
                yield line
                after = line.number
            if len(lines) == _LINES:
                continue
            if record is None or record.head.state not in LIVE:
                return
            pause = _SOON if lines else min(pause * 1.5, _LATE)
            await _wait(news, pause)


@asynccontextmanager
async def _news(engine: Engine) -> AsyncIterator[asyncio.Event]:
    """Have an event set whenever something may have ended."""
    news = asyncio.Event()

    async def listen() -> None:
        with suppress(EngineUnavailable):
            async for _ in engine.watch(("settled",)):
                news.set()

    listener = asyncio.create_task(listen(), name="trellis-operator-hints")
    try:
        yield news
    finally:
        listener.cancel()
        with suppress(asyncio.CancelledError):
            await listener


async def _wait(news: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
