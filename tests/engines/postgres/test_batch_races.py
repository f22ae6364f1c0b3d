"""Members of batches that end at the same moment, on real connections: one fan-in job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psycopg
import pytest

from tests.engines.postgres.steps import during
from tests.engines.postgres.told_time import *  # noqa: F403 - fixtures are found by name
from trellis.core.commands import Complete
from trellis.core.job import Dedupe, JobRecord, Relations
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import Hook, KeyPolicy, Policy
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import Committed, JobFilter
from trellis.testing.builders import QUEUE, TYPE, a_job, a_keyed_job, fence_of
from trellis.testing.conformance.batches import a_batch, fan_ins, member_of, opened, status
from trellis.testing.conformance.helpers import a_session, accept_one, claim

ROUNDS = 12


@pytest.fixture
async def engines(url: str, engine: Engine) -> AsyncIterator[list[Engine]]:
    async with AsyncExitStack() as opened_ones:
        found: list[Engine] = [engine]
        for _ in range(2):
            other = PostgresEngine(url)
            await other.open()
            opened_ones.push_async_callback(other.close)
            found.append(other)
        yield found


async def done(engine: Engine, record: JobRecord) -> Transition:
    decision = decide(record, Complete(fence_of(record), "1"), await engine.now())
    assert isinstance(decision, Transition)
    return decision


async def test_the_last_members_end_at_once_and_the_batch_fires_once(
    engines: list[Engine],
) -> None:
    session = await a_session(engines[0])
    for number in range(1, ROUNDS + 1):
        new, _ = await opened(engines[0], 3)
        await engines[0].seal_batch(new.id)
        ends = [await done(engines[0], each) for each in await claim(engines[0], session)]
        pairs = zip(engines, ends, strict=True)
        answers = await asyncio.gather(*(each.commit([end]) for each, end in pairs))
        assert answers == [[Committed()]] * 3
        assert len(await fan_ins(engines[0])) == number


async def test_members_of_two_batches_end_in_both_orders_without_a_deadlock(
    engines: list[Engine],
) -> None:
    session = await a_session(engines[0])
    for number in range(1, ROUNDS + 1):
        first, second = a_batch(), a_batch()
        for batch in (first, second):
            await engines[0].open_batch(batch)
        await engines[0].create([member_of(b) for b in (first, second, second, first)])
        for batch in (first, second):
            await engines[0].seal_batch(batch.id)
        one, two, three, four = [
            await done(engines[0], each) for each in await claim(engines[0], session)
        ]
        await asyncio.gather(engines[1].commit([one, two]), engines[2].commit([three, four]))
        assert len(await fan_ins(engines[0])) == 2 * number


async def test_a_batch_that_is_sealed_while_its_last_member_ends_fires_once(
    engines: list[Engine],
) -> None:
    session = await a_session(engines[0])
    for number in range(1, ROUNDS + 1):
        new, _ = await opened(engines[0], 1)
        (taken,) = await claim(engines[0], session)
        end = await done(engines[0], taken)
        await asyncio.gather(engines[1].seal_batch(new.id), engines[2].commit([end]))
        assert len(await fan_ins(engines[0])) == number
        assert (await status(engines[0], new)).batch.state == "finished"


async def test_a_job_that_ends_while_a_batch_links_it_is_not_waited_for_in_vain(
    engines: list[Engine],
) -> None:
    session = await a_session(engines[0])
    for number in range(1, ROUNDS + 1):
        key = Dedupe(f"d{number}", "unfinished")
        await accept_one(engines[0], a_job(dedupe=key))
        (taken,) = await claim(engines[0], session)
        new, _ = await opened(engines[0], 0)
        end = await done(engines[0], taken)
        twin = member_of(new, dedupe=key)
        _, answers = await asyncio.gather(engines[1].create([twin]), engines[2].commit([end]))
        assert answers == [Committed()]
        await engines[0].seal_batch(new.id)
        for left in await claim(engines[0], session):  # the twin, if the other had ended before
            await engines[0].commit([await done(engines[0], left)])
        assert len(await fan_ins(engines[0])) == number
    assert len((await engines[0].find(JobFilter(types=("report",)), limit=100)).jobs) == ROUNDS


#: What creating a member does that stands for an existing job, beside the lock of that job's key.
_LINK = """
    select pg_advisory_xact_lock(hashtextextended('trellis/key/{key}', 0));
    update trellis.queue set watched = true where job = {job};
    insert into trellis.batch_member (batch, job, linked) values ({batch}, {job}, true)
"""


@pytest.mark.parametrize("is_member", [True, False])
async def test_a_batch_that_takes_a_job_while_that_job_ends_does_not_wait_in_vain(
    engine: Engine, url: str, *, is_member: bool
) -> None:
    """The end has read the batches of the job already, and waits for the lock of its key."""
    hooked = Policy(hooks=(Hook("finished", TYPE, QUEUE),))
    own, _ = await opened(engine, 0)
    relations = Relations(batch=own.id) if is_member else None
    new = a_keyed_job("u", KeyPolicy("user/{id}"), policy=hooked, relations=relations)
    job = await accept_one(engine, new)
    late, _ = await opened(engine, 0)
    await accept_one(engine, a_job())  # so that the lane of the hook is known
    taken, _ = await claim(engine, await a_session(engine))
    link = _LINK.format(
        key=new.key_hash, job=job.definition.row, batch=(await status(engine, late)).batch.row
    )
    committing = engine.commit([await done(engine, taken)])
    assert await during(url, link, committing) == [Committed()]
    assert (await status(engine, late)).finished == 1
    await engine.seal_batch(late.id)
    assert len(await fan_ins(engine)) == 1


async def test_a_complete_batch_is_found_behind_many_that_wait(engine: Engine, url: str) -> None:
    batches = [(await opened(engine, 1))[0] for _ in range(4)]
    for batch in batches:
        await engine.seal_batch(batch.id)
    last = (await status(engine, batches[-1])).batch.row
    with psycopg.connect(url) as other:
        other.execute(
            "update trellis.batch_member set finished_at = 1, state = 'completed', succeeded = true"
            " where batch = %s",
            (last,),
        )
    assert await engine.finish_batches(2) == 1
    assert (await status(engine, batches[-1])).batch.state == "finished"
    assert len(await fan_ins(engine)) == 1
