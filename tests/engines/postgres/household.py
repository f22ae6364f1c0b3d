"""A SQLite file with jobs in every state people meet, with all that can belong to a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from trellis import control
from trellis.core.commands import Cancel, Command, Complete, Fail, Replay
from trellis.core.durations import SECOND
from trellis.core.events import Event
from trellis.core.job import Dedupe, Failure, JobId, JobRecord, NewJob, Relations, SessionId
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.declaration.fingerprint import fingerprint
from trellis.engines.clock import SystemClock
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import (
    Activity,
    Item,
    ItemEntry,
    JobFilter,
    LogLine,
    Note,
    Outcome,
    Phase,
    Progress,
    QueueSettings,
)
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker, fence_of
from trellis.testing.clock import ManualClock

EXPECTED = fingerprint({"a": 1})
ONCE = Policy(retry=Retry.never())
LATER = Policy(retry=Retry.fixed(3600 * SECOND))
IN_TURN = KeyPolicy("k", queued=None, when_full="wait")
#: The slot is kept between attempts.
HELD = replace(IN_TURN, hold="job")
ERROR = Failure("exception", "it burnt")
HOUR = 3600 * SECOND
UNFINISHED = Dedupe("unfinished", "unfinished")


class Thing(NamedTuple):
    """Everything people can see of a job, but for numbers that are the engine's own."""

    record: JobRecord
    journal: list[Event]
    outcomes: list[Outcome]
    activity: Activity | None
    items: list[ItemEntry]
    logs: list[tuple[object, ...]]


def furniture() -> dict[str, NewJob]:
    """Return the jobs by name, in the order they are created."""
    return {
        "held-waits": a_keyed_job("held", HELD, type="held", delay=SECOND),
        "held": a_keyed_job("held", HELD, type="held", policy=LATER),
        "low": a_job(priority=0),
        "high": a_job(priority=4, tags=(("tenant", "acme"), ("x", "'\"ä"))),
        "dead": a_job(
            type="burn", policy=ONCE, idempotency_key="dead-once", dedupe=Dedupe("hour", None, HOUR)
        ),
        "twice": a_job(type="burn", policy=ONCE),
        "retry": a_job(type="burn", policy=LATER, idempotency_key="retry-once", dedupe=UNFINISHED),
        "done": a_job(type="easy", idempotency_key="done-once"),
        "failed": a_job(type="burn"),
        "cancelled": a_job(type="never"),
        "delayed": a_job(delay=HOUR, dedupe="delayed-once", deadline_in=2 * HOUR),
        "turn-1": a_keyed_job("turn", IN_TURN, idempotency_key="turn-once"),
        "turn-2": a_keyed_job("turn", IN_TURN),
        "config": a_job(
            config='{"a":1}',
            expect=EXPECTED,
            schema_version=3,
            clone_of=JobId("old"),
            relations=Relations(parent=JobId("old"), slot=7),
        ),
        "paused": a_job(queue="quiet"),
    }


async def furnish(path: Path) -> dict[str, NewJob]:
    """Fill a file; nobody works on it afterwards. It all happened a minute ago."""
    clock = ManualClock(SystemClock().now() - 60 * SECOND)
    engine = SqliteEngine(path, clock=clock)
    await engine.open()
    try:
        named = furniture()
        await engine.create(list(named.values()))
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        await _work(engine, session, named)
        await engine.close_session(session)
        await control.apply(engine, named["cancelled"].id, Cancel("enough"))
        await engine.set_queue(QueueSettings("shop", "quiet", paused=True))
        clock.advance("10s")
        await engine.promote(99)  # one that was delayed waits for its key now
    finally:
        await engine.close()
    return named


async def _work(engine: Engine, session: SessionId, named: dict[str, NewJob]) -> None:
    demand = [a_demand("burn", "easy", "held")]
    taken = {each.definition.id: each for each in (await engine.claim(session, demand, 99)).jobs}
    for name in ("dead", "twice"):
        await _talk(engine, taken[named[name].id])
    ends: dict[str, Command] = {
        name: Fail(fence_of(taken[named[name].id]), ERROR, retryable=name != "failed")
        for name in ("dead", "twice", "retry", "failed", "held")
    }
    ends["done"] = Complete(fence_of(taken[named["done"].id]), '"result"')
    asked = [(taken[named[name].id], command) for name, command in ends.items()]
    await control.apply_all(engine, asked, await engine.now())
    # Dead, replayed, dead again: two generations.
    await control.apply(engine, named["twice"].id, Replay())
    (again,) = (await engine.claim(session, demand, 99)).jobs
    await _talk(engine, again)
    await control.apply(engine, again.definition.id, Fail(fence_of(again), ERROR))


async def _talk(engine: Engine, job: JobRecord) -> None:
    bodies = (
        Progress(1, 2, "step"),
        Phase("heat"),
        Item("a", "completed", "fine", "heat"),
        Item("b", "failed"),
        LogLine("info", "hello", '{"n":1}'),
        LogLine("error", "smoke and \0 fire"),
    )
    row, claim, fence = job.definition.row, job.head.claims, fence_of(job)
    await engine.note([Note(row, claim, fence, body) for body in bodies])


async def inventory(engine: Engine) -> dict[JobId, Thing]:
    """Return everything about every job, in creation order."""
    records: list[JobRecord] = []
    after: int | None = None
    while True:
        page = await engine.find(JobFilter(), after=after, limit=500)
        records += page.jobs
        after = page.next_after
        if after is None:
            break
    return {each.definition.id: await _thing(engine, each) for each in reversed(records)}


async def _thing(engine: Engine, record: JobRecord) -> Thing:
    job_id = record.definition.id
    return Thing(
        record._replace(definition=record.definition._replace(row=0)),
        await engine.journal(job_id),
        await engine.outcomes(job_id),
        await engine.activity(job_id),
        await engine.items(job_id),
        [line[1:] for line in await engine.logs(job_id)],
    )
