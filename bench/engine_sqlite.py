"""The SQLite engine through its port: the same work as the floor, with everything Trellis keeps."""

from __future__ import annotations

import asyncio
import time
import timeit
from pathlib import Path

from bench.floor_sqlite import PAYLOAD
from trellis.core.commands import Claim, Complete
from trellis.core.durations import SECOND, Instant
from trellis.core.job import Fence, JobRecord, NewJob, SessionId, define, fresh_context
from trellis.core.lifecycle import Transition, creation, decide
from trellis.core.policy import DEFAULT_POLICY
from trellis.declaration.ids import new_job_id
from trellis.engines.demand import Demand
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Committed, WorkerInfo


def new_jobs(count: int) -> list[NewJob]:
    """Make requests as the client does: an id and a context each."""
    jobs = []
    for number in range(count):
        job_id = new_job_id()
        context = fresh_context(job_id, number + 1, number + 1)
        jobs.append(
            NewJob(
                id=job_id,
                service="bench",
                type="noop",
                queue="noop",
                payload=PAYLOAD,
                policy=DEFAULT_POLICY,
                context=context,
            )
        )
    return jobs


async def create(engine: SqliteEngine, jobs: list[NewJob], batch: int, callers: int) -> float:
    """Create jobs in batches, each caller waiting for its call; return jobs per second."""
    began = time.perf_counter()
    starts = iter(range(0, len(jobs), batch))

    async def call_after_call() -> None:
        for first in starts:
            await engine.create(jobs[first : first + batch])

    await asyncio.gather(*(call_after_call() for _ in range(callers)))
    return len(jobs) / (time.perf_counter() - began)


def completed(record: JobRecord, now: Instant) -> Transition:
    """Decide that the job's no-op handler has returned."""
    fence = record.head.fence
    decision = decide(record, Complete(fence, "null", started_at=now), now) if fence else None
    if not isinstance(decision, Transition):
        raise TypeError(f"not a completion: {decision}")
    return decision


async def drain(engine: SqliteEngine, jobs: int, batch: int) -> float:
    """Claim and complete everything, at most two batches at once; return jobs per second."""
    session = (await engine.open_session(WorkerInfo("bench", "localhost", 0), 60 * SECOND)).id
    began = time.perf_counter()
    done = await asyncio.gather(*(_drain(engine, session, batch) for _ in range(2)))
    if sum(done) != jobs:
        raise RuntimeError(f"drained {sum(done)} of {jobs}")
    return jobs / (time.perf_counter() - began)


async def _drain(engine: SqliteEngine, session: SessionId, batch: int) -> int:
    demands = [Demand("bench", ("noop",), batch)]
    done = 0
    held = await engine.claim(session, demands, batch)
    while held.jobs:
        transitions = [completed(record, held.now) for record in held.jobs]
        answers, held = await asyncio.gather(
            engine.commit(transitions), engine.claim(session, demands, batch)
        )
        done += sum(isinstance(answer, Committed) for answer in answers)
    return done


async def measure(folder: Path, count: int, batch: int) -> tuple[float, float, float]:
    """Create and drain in a fresh file, then create with two callers; return the three rates."""
    engine = SqliteEngine(folder / "engine.db")
    await engine.open()
    try:
        alone = await create(engine, new_jobs(count), batch, callers=1)
        drained = await drain(engine, count, batch)
        return alone, drained, await create(engine, new_jobs(count), batch, callers=2)
    finally:
        await engine.close()


def decide_microseconds() -> float:
    """Return what one decision about a completion costs."""
    (new,) = new_jobs(1)
    fence = Fence(SessionId(1), 2)
    waiting = JobRecord(define(new, 1, 0), creation(0, 0)[1])
    claimed = decide(waiting, Claim(fence), 0)
    if not isinstance(claimed, Transition):
        raise TypeError(claimed)
    record, command = JobRecord(claimed.definition, claimed.head), Complete(fence, "null")
    count = 20_000
    return (
        min(timeit.repeat(lambda: decide(record, command, 1), number=count, repeat=5)) / count * 1e6
    )
