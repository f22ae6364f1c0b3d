"""The engine without client and worker: filling a stream fast, and single verbs by the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Final

from bench.floor_sqlite import PAYLOAD
from trellis import control
from trellis.core.commands import Complete
from trellis.core.durations import SECOND
from trellis.core.job import JobId, NewJob, SessionId
from trellis.engines.demand import Demand
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.url import deployment_of
from trellis.testing.builders import a_job, a_worker

_SERVICE, _TYPE = "bench", "noop"
_PAGE: Final = 500
#: Calls under way at the same time while the stream is filled.
_AT_ONCE: Final = 4
_LEASE: Final = 3600 * SECOND


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[JetStreamEngine]:
    """Open an engine."""
    servers, prefix, *_ = deployment_of(url)
    engine = JetStreamEngine(servers, prefix=prefix)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def new_job(job_type: str = _TYPE) -> NewJob:
    """Return a request as an application makes it."""
    return a_job(service=_SERVICE, type=job_type, queue=job_type, payload=PAYLOAD)


async def fill(engine: JetStreamEngine, jobs: int, job_type: str = _TYPE) -> list[JobId]:
    """Make jobs that wait; return the ids of some of them."""
    left, kept = iter(range(0, jobs, _PAGE)), list[JobId]()

    async def page_after_page() -> None:
        for start in left:
            page = [new_job(job_type) for _ in range(min(_PAGE, jobs - start))]
            await engine.create(page)
            kept.append(page[0].id)

    await asyncio.gather(*(page_after_page() for _ in range(_AT_ONCE)))
    return kept


async def finish(engine: JetStreamEngine, jobs: int, job_type: str = _TYPE) -> None:
    """Claim and complete this many jobs."""
    session = (await engine.open_session(a_worker(), _LEASE)).id
    left = jobs

    async def page_after_page() -> None:
        nonlocal left
        while left > 0:
            wanted = min(_PAGE, left)
            left -= wanted
            found = await claim(engine, session, wanted, job_type)
            left += wanted - found

    await asyncio.gather(*(page_after_page() for _ in range(_AT_ONCE)))
    await engine.close_session(session)


async def claim(
    engine: JetStreamEngine, session: SessionId, limit: int, job_type: str = _TYPE
) -> int:
    """Claim jobs and complete them; return how many there were."""
    demand = Demand(_SERVICE, (job_type,), limit)
    claimed = await engine.claim(session, [demand], limit)
    ends = [(each, Complete(each.head.fence)) for each in claimed.jobs if each.head.fence]
    await control.apply_all(engine, ends, claimed.now)
    return len(ends)


async def make_finished(url: str, jobs: int) -> None:
    """Make jobs, and complete them."""
    async with opened(url) as engine:
        await fill(engine, jobs)
        await engine.catch_up()
        await finish(engine, jobs)


async def timed(url: str, known: list[JobId], calls: int) -> dict[str, list[float]]:
    """Create and claim single jobs in turn, then load jobs; return what calls took, in ms.

    Jobs are loaded last: what the server reads from its files for them would slow the others down.
    The engine that loads has not seen the jobs before. A bare read is the request for one message
    of any age: a load is two of them.
    """
    async with opened(url) as engine, opened(url) as reader:
        return await _timed_calls(engine, reader, known, calls)


async def _timed_calls(
    engine: JetStreamEngine, reader: JetStreamEngine, known: list[JobId], calls: int
) -> dict[str, list[float]]:
    session = (await engine.open_session(a_worker(), _LEASE)).id
    took: dict[str, list[float]] = {
        "create": [], "claim": [], "load new": [], "load": [], "bare read": [],
    }  # fmt: skip
    demand, stream = Demand(_SERVICE, ("timed",), 1), engine._subjects.jobs
    last = (await engine._link.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
    new = [new_job("timed") for _ in range(calls)]
    for each in new:
        fed = await _fed(engine)
        took["create"].append(await _timed(engine.create([each])))
        while await _fed(engine) == fed:  # the next claim is to find the job
            pass
        began = time.perf_counter()
        claimed = await engine.claim(session, [demand], 1)
        took["claim"].append(1000 * (time.perf_counter() - began))
        ends = [(each, Complete(each.head.fence)) for each in claimed.jobs if each.head.fence]
        await control.apply_all(engine, ends, claimed.now)
    for each in new:
        took["load new"].append(await _timed(reader.load([each.id])))
    for number in range(calls):
        job_id = known[number * 7919 % len(known)]
        took["load"].append(await _timed(reader.load([job_id])))
    for number in range(calls):
        sequence = 1 + number * 104_729 % last
        took["bare read"].append(await _timed(reader._link.get(stream, sequence)))
    await engine.close_session(session)
    return took


async def _fed(engine: JetStreamEngine) -> int:
    """Return the sequence of the last work message, which costs the server next to nothing."""
    info = await engine._link.api(f"STREAM.INFO.{engine._subjects.work}")
    return int(info["state"]["last_seq"])


async def _timed(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return 1000 * (time.perf_counter() - began)
