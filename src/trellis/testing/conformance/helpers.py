"""Steps of the tests of the suite: create, claim, settle, read.

Each does one thing through the port and asserts that it worked, so that a test shows only its
subject.
"""
# ruff: noqa: S101 - the suite consists of assertions

from __future__ import annotations

from typing import TypeVar

from trellis.core.commands import Command, LoseLease
from trellis.core.durations import Duration, micros
from trellis.core.events import Event
from trellis.core.fold import fold
from trellis.core.job import Fence, Head, JobId, JobRecord, NewJob, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import KeyPolicy
from trellis.core.timers import overdue
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Claimed,
    CommitResult,
    Committed,
    JobFilter,
    KeyStatus,
    Renewed,
)
from trellis.testing.builders import SERVICE, TYPE, a_demand, a_worker, fence_of

T = TypeVar("T")

#: One slot, any number of waiting jobs: the most common key policy.
IN_TURN = KeyPolicy("user/{id}", active=1, queued=None, when_full="wait")


async def accept(engine: Engine, *jobs: NewJob) -> list[JobRecord]:
    """Create jobs that must all be accepted; return them as stored."""
    answers = await engine.create(jobs)
    assert answers == [Accepted(new.id) for new in jobs]
    return [await the(engine, new.id) for new in jobs]


async def accept_one(engine: Engine, new: NewJob) -> JobRecord:
    """Create one job that must be accepted; return it as stored."""
    return (await accept(engine, new))[0]


async def the(engine: Engine, job_id: JobId) -> JobRecord:
    """Return a job that must be there."""
    record = (await engine.load([job_id])).records[0]
    assert record is not None
    return record


async def were_removed(engine: Engine, *job_ids: JobId) -> list[bool]:
    """Return for each id whether its job is missing and known to have been removed."""
    removed = (await engine.load(job_ids)).removed
    assert removed <= set(job_ids)
    return [job_id in removed for job_id in job_ids]


async def head(engine: Engine, record: JobRecord) -> Head:
    """Return the present head of a job."""
    return (await the(engine, record.definition.id)).head


async def journal(engine: Engine, record: JobRecord) -> list[Event]:
    """Return the journal of a job."""
    return await engine.journal(record.definition.id)


async def kinds(engine: Engine, record: JobRecord) -> list[str]:
    """Return the names of the events of a job."""
    return [event.kind.value for event in await journal(engine, record)]


async def a_session(engine: Engine, lease: Duration = "30s") -> SessionId:
    """Open a session."""
    return (await engine.open_session(a_worker(), micros(lease))).id


async def claim_answer(
    engine: Engine, session: SessionId, *demands: Demand, limit: int = 100
) -> Claimed:
    """Claim, once claims see what was stored before; return the whole answer."""
    await engine.catch_up()
    return await engine.claim(session, demands or (a_demand(),), limit)


async def claim(
    engine: Engine, session: SessionId, *demands: Demand, limit: int = 100
) -> list[JobRecord]:
    """Claim all due jobs; those of the builders' default type if no demand is given."""
    return list((await claim_answer(engine, session, *demands, limit=limit)).jobs)


async def claim_one(engine: Engine, session: SessionId, *demands: Demand) -> JobRecord:
    """Claim the one job that must be next."""
    taken = await claim(engine, session, *demands, limit=1)
    assert len(taken) == 1, "There was no job to claim."
    return taken[0]


async def start(engine: Engine, session: SessionId, new: NewJob) -> JobRecord:
    """Create a job and claim it."""
    await accept_one(engine, new)
    taken = await claim_one(engine, session, Demand(new.service, (new.type,), 1))
    assert taken.definition.id == new.id
    return taken


async def attempt(engine: Engine, record: JobRecord, command: Command) -> CommitResult:
    """Decide a command against the job as last seen, and commit it; return the answer."""
    return (await engine.commit([await decided(engine, record, command)]))[0]


async def decided(engine: Engine, record: JobRecord, command: Command) -> Transition:
    """Decide a command that the lifecycle must allow."""
    decision = decide(record, command, await engine.now())
    assert isinstance(decision, Transition), decision
    return decision


async def settle(engine: Engine, record: JobRecord, command: Command) -> JobRecord:
    """Apply a command that must go through; return the job afterwards."""
    transition = await decided(engine, record, command)
    assert await engine.commit([transition]) == [Committed()]
    after = await the(engine, record.definition.id)
    assert after.head == transition.head
    return after


async def renew(
    engine: Engine, session: SessionId, *held: JobRecord, stopped: tuple[Fence, ...] = ()
) -> Renewed:
    """Renew a session that must be alive."""
    answer = await engine.renew(session, [fence_of(each) for each in held], stopped)
    assert isinstance(answer, Renewed)
    return answer


async def reap_lapsed(engine: Engine) -> list[SessionId]:
    """Reap every lapsed session, as maintenance does."""
    lapsed = (await engine.due("sessions", 100)).sessions
    assert all([await engine.reap(session) for session in lapsed])
    return list(lapsed)


async def give_up_lost(engine: Engine) -> list[JobRecord]:
    """Settle every lost attempt, as maintenance does; return the jobs afterwards."""
    lost = (await engine.due("lost", 100)).jobs
    return [await settle(engine, job.record, LoseLease(fence_of(job.record))) for job in lost]


async def settle_overdue(engine: Engine) -> list[JobRecord]:
    """Apply the commands of the clock, as maintenance does; return the jobs afterwards."""
    due = await engine.due("jobs", 100)
    settled = []
    for record, seen_at in due.jobs:
        command = overdue(record.definition, record.head, seen_at, due.now, 0.0)
        assert command is not None, "The engine returned a job as due that is not."
        settled.append(await settle(engine, record, command))
    return settled


async def key_status(
    engine: Engine, key: str, service: str = SERVICE, job_type: str = TYPE
) -> KeyStatus | None:
    """Return the status of a key; None if no job holds it or waits for it."""
    found = [status for status in await engine.keys(service, job_type) if status.key == key]
    assert len(found) <= 1
    return found[0] if found else None


async def holders(engine: Engine, key: str) -> list[JobId]:
    """Return the jobs that hold the slots of a key of the builders' default type."""
    status = await key_status(engine, key)
    return list(status.holders) if status else []


async def check_journals(engine: Engine) -> None:
    """Assert that the journal of every job folds to its head."""
    await engine.catch_up()
    after = None
    while True:
        page = await engine.find(JobFilter(), after=after, limit=200)
        for record in page.jobs:
            events = await engine.journal(record.definition.id)
            assert fold(events) == record.head, record.definition.id
        if page.next_after is None:
            return
        after = page.next_after


def ids(records: list[JobRecord]) -> list[JobId]:
    """Return the ids of these jobs."""
    return [record.definition.id for record in records]
