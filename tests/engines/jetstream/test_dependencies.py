"""Ends that many jobs wait for: one write takes what it has room for, and the rest follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis import control
from trellis.core.batches import NewBatch
from trellis.core.commands import Fail, Retry
from trellis.core.job import Failure, JobId, NewJob, Prerequisite, Relations
from trellis.core.policy import Hook, KeyPolicy, Policy
from trellis.core.states import State
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Link, Message, Outdated
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter
from trellis.errors import CapabilityMissing
from trellis.testing.builders import SERVICE, a_job, a_keyed_job, complete, fence_of
from trellis.testing.conformance.helpers import a_session, accept, claim_one, settle, start

IN_TURN = KeyPolicy("user/{id}", 1, None, "wait")
BATCH = NewBatch("all", SERVICE)


def plain(_: int) -> NewJob:
    return a_job()


def of_one_key(_: int) -> NewJob:
    return a_keyed_job("user/1", IN_TURN)


def of_many_keys(number: int) -> NewJob:
    return a_keyed_job(f"user/{number}", IN_TURN)


def of_one_batch(_: int) -> NewJob:
    return a_job(relations=Relations(batch=BATCH.id))


async def create_behind(
    engine: Engine, first: JobId, count: int, make: Callable[[int], NewJob]
) -> list[JobId]:
    """Create jobs that wait for the success of another one."""
    jobs = [make(each)._replace(after=(Prerequisite(first),)) for each in range(count)]
    return [each.definition.id for each in await accept(engine, *jobs)]


async def move_all(engine: ManualEngine) -> None:
    """Move jobs until none is left that a write had no room for."""
    while await engine._dependencies.left():
        await engine.promote(100)


async def states(engine: Engine, ids: list[JobId]) -> set[State | None]:
    found: set[State | None] = set()
    for start_at in range(0, len(ids), 200):
        records = (await engine.load(ids[start_at : start_at + 200])).records
        found |= {None if each is None else each.head.state for each in records}
    return found


@pytest.mark.parametrize("make", [plain, of_one_key, of_many_keys, of_one_batch])
async def test_a_job_is_cancelled_however_many_wait_for_those_that_wait_for_it(
    engine: ManualEngine, make: Callable[[int], NewJob]
) -> None:
    port = cast("Engine", engine)
    await engine.open_batch(BATCH)
    (first,) = await accept(port, a_job())
    second = await create_behind(port, first.definition.id, 5, make)
    third = [each for job_id in second for each in await create_behind(port, job_id, 150, make)]
    await control.cancel(port, first.definition.id)
    assert await states(port, [first.definition.id, *second]) == {State.CANCELLED}
    await move_all(engine)
    assert await states(port, third) == {State.CANCELLED}
    (status,) = await engine.batch_statuses([BATCH.id])
    assert status is not None
    assert status.finished == (755 if make is of_one_batch else 0)
    assert await engine.keys(SERVICE, "invoice") == []


def with_much_behind_it(number: int) -> NewJob:
    """Return a job whose end changes its key and its batch, and creates two jobs."""
    policy = Policy(key=IN_TURN, hooks=(Hook("finished", "report", "default"),))
    relations = Relations(batch=f"batch-{number}")
    return a_job(policy=policy, key=f"user/{number}", relations=relations)


@pytest.mark.long
async def test_a_failure_is_stored_however_much_follows_the_ends_of_those_that_wait(
    engine: ManualEngine,
) -> None:
    port = cast("Engine", engine)
    first = await start(port, await a_session(port), a_job())
    for number in range(160):
        then = a_keyed_job(f"then/{number}", IN_TURN, type="then")
        await engine.open_batch(NewBatch(f"batch-{number}", SERVICE, then=then))
    second = await create_behind(port, first.definition.id, 160, with_much_behind_it)
    third = [(await create_behind(port, each, 1, plain))[0] for each in second]
    for number in range(160):
        await engine.seal_batch(f"batch-{number}")
    boom = Fail(fence_of(first), Failure("exception", "boom"), retryable=False)
    assert (await settle(port, first, boom)).head.state is State.FAILED
    await move_all(engine)
    assert await states(port, second + third) == {State.CANCELLED}
    _, found, _ = await engine.find(JobFilter())
    made = [each.definition.type for each in found]
    assert (made.count("then"), made.count("report")) == (160, 160)


async def test_a_write_of_more_messages_than_the_server_takes_is_refused(
    link: Link, deployed: Subjects
) -> None:
    body = Message(deployed.own("audit"), b"{}")
    with pytest.raises(CapabilityMissing, match=r"at most 1,000 .* needs 1,001\. Nothing was"):
        await link.write(*[body] * 1001)


async def test_a_job_that_begins_to_wait_while_another_ends_for_the_second_time_is_tried_again(
    engine: ManualEngine,
) -> None:
    port = cast("Engine", engine)
    session = await a_session(port)
    running = await start(port, session, a_job())
    await create_behind(port, running.definition.id, 1, plain)
    boom = Failure("exception", "boom")
    failed = await settle(port, running, Fail(fence_of(running), boom, retryable=False))
    await settle(port, failed, Retry())
    again = await claim_one(port, session)
    draft = Draft(engine._store)
    late = a_job(after=(Prerequisite(running.definition.id),))
    await engine._dependencies.add(draft, late)
    await settle(port, again, complete(again))
    assert isinstance(await draft.write(), Outdated)
