"""A database with jobs in every state people meet, made without a worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from trellis import Service
from trellis.core.commands import Fail
from trellis.core.durations import micros
from trellis.core.job import Failure, JobRecord, NewJob
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Begun, LogLine, Note, Progress, WorkerInfo
from trellis.testing.builders import a_job, a_keyed_job, complete, fence_of
from trellis.testing.conformance.helpers import IN_TURN, accept_one, settle, start
from trellis.worker.maintenance import LEADER

#: Clears the screen, colours it, rings, and tries to look like another line.
NASTY: Final = "boom \x1b[2J\x1b[31m\x07\r\nall is well\x9b1m\u202egnp"
DETAILS: Final = '{"types":["shop/sync","shop/bill"],"slots":3}'
NEVER: Final = Policy(retry=Retry.never())


def make_shop(folder: Path) -> dict[str, str]:
    """Fill jobs.db in this folder, with settings that name it; return the ids by state."""
    (folder / "trellis.toml").write_text('url = "sqlite:///jobs.db"\n')
    return asyncio.run(fill(SqliteEngine(folder / "jobs.db")))


def make_database(folder: Path, jobs: int = 3) -> str:
    """Create a database with pending jobs of one type; return its URL."""
    url = f"sqlite:///{folder / 'jobs.db'}"
    job = Service("shop", url).declare("greet", payload=int, result=int)

    async def create() -> None:
        await job.create_many(range(jobs))

    asyncio.run(create())
    return url


async def fill(engine: Engine) -> dict[str, str]:
    """Store the jobs; return their ids by state."""
    await engine.open()
    info = WorkerInfo("berlin", "host-1", 4242, "0.1.0", DETAILS)
    session = (await engine.open_session(info, micros("10m"))).id

    async def begin(new: NewJob) -> JobRecord:
        return await start(engine, session, new)

    async def fail(new: NewJob, *, retryable: bool) -> JobRecord:
        record = await begin(new)
        error = Failure("exception", f"ValueError: {NASTY}", "Traceback ...\n  raise\x1b[0m")
        return await settle(engine, record, Fail(fence_of(record), error, retryable=retryable))

    done = await begin(a_job(type="bill"))
    await settle(engine, done, complete(done, '{"paid":true,"token":"t0p"}'))
    failed = await fail(a_job(type="bill", policy=NEVER), retryable=False)
    dead = await fail(a_job(type="sync", policy=NEVER), retryable=True)
    retry = await fail(a_job(type="sync"), retryable=True)
    active = await begin(a_keyed_job("eu", IN_TURN, type="sync"))
    await _talk(engine, active)
    held = await accept_one(engine, a_keyed_job("eu", IN_TURN, type="sync"))
    secret = '{"order":7,"password":"hunter2"}'
    waiting = await accept_one(
        engine, a_job(type="bill", payload=secret, tags=(("tenant", "acme"),))
    )
    await engine.take_lock("nightly", session)
    await engine.take_lock(LEADER, session)
    await engine.close()
    records = {
        "completed": done,
        "failed": failed,
        "dead": dead,
        "retry": retry,
        "active": active,
        "held": held,
        "waiting": waiting,
    }
    return {name: record.definition.id for name, record in records.items()}


async def _talk(engine: Engine, record: JobRecord) -> None:
    """Have the running attempt say something."""
    definition, head = record
    bodies = (
        Begun(await engine.now()),
        Progress(3, 10, "render", "page 3"),
        LogLine("info", "starting", '{"user":"ada"}'),
        LogLine("warning", NASTY),
    )
    await engine.note(
        [Note(definition.row, head.claims, fence_of(record), body) for body in bodies]
    )
