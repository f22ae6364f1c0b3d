"""What has happened to a job, as it happens: its journal and its log, without gaps or repeats.

Only stored entries are yielded, each once and in order. Whether the job has ended is looked at
before its entries are, so that nothing written until its end can be missed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from trellis.client.connection import Connection
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId
from trellis.core.spans import to_datetime
from trellis.core.states import LIVE, State
from trellis.engines.port import Engine
from trellis.engines.values import LogEntry
from trellis.errors import EngineClosed, EngineUnavailable, no_such_job

T = TypeVar("T")
_SOON: Final = 0.05
_LATE: Final = 0.5
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One entry of a job's journal."""

    kind: EventKind
    #: The state after it.
    state: State
    at: datetime
    #: The number of the attempt it speaks of.
    attempt: int
    #: The attempt it speaks of, where there is one.
    attempt_id: str | None
    #: What else is known: the error of a failure, who cancelled and why, ...
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobLogLine:
    """One line of a job's log."""

    #: Counts the lines of a job.
    number: int
    at: datetime
    #: Which start of the job wrote it; 1 is the first.
    claim: int
    level: str
    message: str
    #: What was given by name: `job.log.info("sent", to=address)`.
    fields: Mapping[str, Any]


async def events(connection: Connection, job_id: JobId, *, follow: bool) -> AsyncIterator[JobEvent]:
    """Yield the journal; with `follow` go on until the job ends."""

    async def read(engine: Engine, seen: int) -> tuple[Sequence[Event], int]:
        journal = await engine.journal(job_id)
        return journal[seen:], len(journal)

    async with aclosing(_entries(connection, job_id, read, follow=follow)) as entries:
        async for event in entries:
            fence = event.fence.attempt_id if event.fence is not None else None
            at = to_datetime(event.at)
            yield JobEvent(event.kind, event.state, at, event.attempt, fence, event.data or {})


async def logs(connection: Connection, job_id: JobId, *, follow: bool) -> AsyncIterator[JobLogLine]:
    """Yield the log; with `follow` go on until the job ends."""

    async def read(engine: Engine, seen: int) -> tuple[Sequence[LogEntry], int]:
        lines: list[LogEntry] = []
        while True:
            page = await engine.logs(job_id, seen, _PAGE)
            lines += page
            if len(page) < _PAGE:
                return lines, lines[-1].number if lines else seen
            seen = page[-1].number

    async with aclosing(_entries(connection, job_id, read, follow=follow)) as entries:
        async for line in entries:
            fields = json.loads(line.fields) if line.fields else {}
            at = to_datetime(line.at)
            yield JobLogLine(line.number, at, line.claim, line.level, line.message, fields)


async def _entries(
    connection: Connection,
    job_id: JobId,
    read: Callable[[Engine, int], Awaitable[tuple[Sequence[T], int]]],
    *,
    follow: bool,
) -> AsyncGenerator[T, None]:
    engine, news = await connection.engine(), (await connection.room()).news
    seen, pause, over = 0, _SOON, False
    async with news.listening() if follow else nullcontext():
        while not over:
            count, began = news.count, time.monotonic()
            entries: Sequence[T] = ()
            try:
                ended = await _has_ended(engine, job_id)
                entries, seen = await read(engine, seen)
                over = ended or not follow
            except EngineUnavailable as error:
                if not follow or isinstance(error, EngineClosed):
                    raise
            for entry in entries:
                yield entry
            if not over:
                # At most half of the time goes into looking, however often hints come.
                await asyncio.sleep(time.monotonic() - began)
                pause = _SOON if entries else min(pause * 1.5, _LATE)
                await news.after(count, pause)


async def _has_ended(engine: Engine, job_id: JobId) -> bool:
    (record,) = (await engine.load([job_id])).records
    if record is None:
        raise no_such_job(job_id)
    return record.head.state not in LIVE
