"""Draining through the engine alone: claims of 500, and completions beside them.

No handler and no worker, so what is left out of a statement shows in full.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from bench.peers import store
from bench.peers.protocol import make_orders
from bench.peers.trellis.app import Purchase
from trellis import Job, control
from trellis.client.requests import new_jobs
from trellis.core.commands import Complete
from trellis.core.durations import SECOND
from trellis.core.job import Fence, JobRecord, Relations, SessionId
from trellis.engines.demand import Demand
from trellis.engines.postgres import PostgresEngine
from trellis.testing.builders import a_worker

BATCH: Final = 500
_PAGE: Final = 1000
_LEASE: Final = 3600 * SECOND
_NOBODY: Final = Fence(SessionId(0), 0)

#: Takes something away from an engine before it connects.
Change = Callable[[PostgresEngine], None]
Jobs = Sequence[Job[Purchase, None]]


class Drained(NamedTuple):
    """A drain: jobs per second, and what claims and completions took, in milliseconds."""

    rate: float
    claims: list[float]
    completions: list[float]


@asynccontextmanager
async def opened(url: str, change: Change | None = None) -> AsyncIterator[PostgresEngine]:
    """Open an engine, without something if so wished."""
    engine = PostgresEngine(url)
    if change is not None:
        change(engine)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def fill(engine: PostgresEngine, url: str, types: Jobs, jobs: int, tenants: int = 0) -> None:
    """Make jobs, spread over the types and tenants in turn, and let the server tidy up."""
    orders = [Purchase(**order) for order in make_orders(jobs)]
    share = _PAGE // len(types)
    for start in range(0, jobs, _PAGE):
        page = orders[start : start + _PAGE]
        parts = [
            new_jobs(each._job_type, page[place * share : (place + 1) * share])
            for place, each in enumerate(types)
        ]
        page_of_all = [new for mixed in zip(*parts, strict=True) for new in mixed]
        await engine.create(
            [
                new._replace(relations=Relations(tenant=f"tenant-{(start + place) % tenants}"))
                for place, new in enumerate(page_of_all)
            ]
            if tenants
            else page_of_all
        )
    await asyncio.to_thread(store.settle, url)


async def drain(engine: PostgresEngine, types: Jobs, jobs: int) -> Drained:
    """Claim and complete this many jobs."""
    session = (await engine.open_session(a_worker(), _LEASE)).id
    kinds = [each._job_type for each in types]
    demands = [Demand(each.service, (each.name,), BATCH) for each in kinds]
    claimed: asyncio.Queue[Sequence[JobRecord]] = asyncio.Queue(1)
    began = time.perf_counter()
    claims, completions = await asyncio.gather(
        _claim(engine, session, demands, jobs, claimed), _complete(engine, jobs, claimed)
    )
    return Drained(jobs / (time.perf_counter() - began), claims, completions)


async def _claim(
    engine: PostgresEngine,
    session: SessionId,
    demands: Sequence[Demand],
    jobs: int,
    claimed: asyncio.Queue[Sequence[JobRecord]],
) -> list[float]:
    times = []
    while jobs > 0:
        began = time.perf_counter()
        found = (await engine.claim(session, demands, min(BATCH, jobs))).jobs
        times.append(1000 * (time.perf_counter() - began))
        jobs -= len(found)
        if found:
            await claimed.put(found)
    return times


async def _complete(
    engine: PostgresEngine, jobs: int, claimed: asyncio.Queue[Sequence[JobRecord]]
) -> list[float]:
    times = []
    while jobs > 0:
        batch = await claimed.get()
        now = await engine.now()
        asked = [(each, Complete(each.head.fence or _NOBODY, None, 0, now)) for each in batch]
        began = time.perf_counter()
        await control.apply_all(engine, asked, now)
        times.append(1000 * (time.perf_counter() - began))
        jobs -= len(batch)
    return times
