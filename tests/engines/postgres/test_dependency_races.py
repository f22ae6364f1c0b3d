"""Jobs that follow others on PostgreSQL: ends and creations that meet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from tests.engines.postgres.steps import during, fresh, opened
from tests.harness.servers.databases import Databases
from trellis.core.commands import Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord, Prerequisite, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.states import State
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import Accepted, Committed
from trellis.errors import TransactionRefused
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker, complete, fence_of
from trellis.testing.conformance.helpers import IN_TURN

pytestmark = pytest.mark.on_postgres(16, 18)


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def running(engine: PostgresEngine, count: int) -> tuple[SessionId, list[JobRecord]]:
    session = (await engine.open_session(a_worker(), 60 * SECOND)).id
    await engine.create([a_job() for _ in range(count)])
    return session, list((await engine.claim(session, [a_demand()], count)).jobs)


async def end(engine: PostgresEngine, record: JobRecord) -> None:
    decision = decide(record, complete(record), await engine.now())
    assert isinstance(decision, Transition)
    assert await engine.commit([decision]) == [Committed()]


async def test_a_job_that_ends_while_another_is_linked_to_it_releases_it(url: str) -> None:
    async with opened(url) as engine, opened(url) as other:
        session, jobs = await running(engine, 60)
        followers = [a_job(after=(Prerequisite(each.definition.id),)) for each in jobs]
        for first, follower in zip(jobs, followers, strict=True):
            _, created = await asyncio.gather(end(engine, first), other.create([follower]))
            assert created == [Accepted(follower.id)]
        taken = (await engine.claim(session, [a_demand()], 100)).jobs
        assert {each.definition.id for each in taken} == {each.id for each in followers}


async def test_prerequisites_that_end_at_once_release_a_job_once(url: str) -> None:
    async with opened(url) as one, opened(url) as two, opened(url) as three:
        session, jobs = await running(one, 90)
        triples = list(zip(jobs[:30], jobs[30:60], jobs[60:], strict=True))
        followers = [
            a_job(after=tuple(Prerequisite(each.definition.id) for each in triple))
            for triple in triples
        ]
        await one.create(followers)
        for triple in triples:
            await asyncio.gather(*map(end, (one, two, three), triple))
        taken = (await one.claim(session, [a_demand()], 100)).jobs
        assert {each.definition.id for each in taken} == {each.id for each in followers}
        for follower in followers:
            kinds = [event.kind.value for event in await one.journal(follower.id)]
            assert kinds == ["created", "resolved", "started"]


async def test_a_released_job_whose_key_is_locked_is_admitted_later(url: str) -> None:
    async with opened(url) as engine:
        session, (first,) = await running(engine, 1)
        follower = a_keyed_job("k", IN_TURN, after=(Prerequisite(first.definition.id),))
        await engine.create([follower])
        lock = (
            f"select pg_advisory_xact_lock(hashtextextended('trellis/key/{follower.key_hash}', 0))"
        )
        async with await psycopg.AsyncConnection.connect(url) as holder:
            await holder.execute(lock)
            await end(engine, first)
        taken = (await engine.claim(session, [a_demand()], 10)).jobs
        assert [each.definition.id for each in taken] == [follower.id]


async def test_failures_of_two_chains_with_a_common_end_do_not_block_each_other(url: str) -> None:
    async with opened(url) as one, opened(url) as two:
        _, jobs = await running(one, 40)
        for left, right in zip(jobs[:20], jobs[20:], strict=True):
            middle = a_job(after=(Prerequisite(left.definition.id),))
            last = a_job(after=(Prerequisite(right.definition.id), Prerequisite(middle.id)))
            behind = a_job(after=(Prerequisite(last.id), Prerequisite(right.definition.id)))
            assert len(await one.create([middle, last, behind])) == 3
            await asyncio.gather(fail(one, left), fail(two, right))
            for new in (middle, last, behind):
                (record,) = (await one.load([new.id])).records
                assert record is not None
                assert record.head.state is State.CANCELLED


async def fail(engine: PostgresEngine, record: JobRecord) -> None:
    burnt = Fail(fence_of(record), Failure("exception", "it burnt"), retryable=False)
    decision = decide(record, burnt, await engine.now())
    assert isinstance(decision, Transition)
    assert await engine.commit([decision]) == [Committed()]


async def test_a_settlement_waits_for_the_transaction_that_links_a_job(url: str) -> None:
    async with opened(url) as engine:
        session, (first,) = await running(engine, 1)
        mark = "update trellis.queue set watched = true"
        await during(url, mark, end(engine, first))
        (record,) = (await engine.load([first.definition.id])).records
        assert record is not None
        assert record.head.state is State.COMPLETED
        assert (await engine.claim(session, [a_demand()], 1)).jobs == ()


async def test_a_callers_transaction_follows_its_own_jobs_and_ended_ones_only(url: str) -> None:
    async with opened(url) as engine:
        session, (ended, live) = await running(engine, 2)
        await end(engine, ended)
        first = a_job()
        second = a_job(after=(Prerequisite(first.id), Prerequisite(ended.definition.id)))
        foreign = a_job(after=(Prerequisite(live.definition.id),))
        async with await psycopg.AsyncConnection.connect(url) as connection:
            for new in (first, second):
                created = engine.create_within(connection, [new])
                assert not isinstance(created, list)
                assert await created == [Accepted(new.id)]
            refused = engine.create_within(connection, [foreign])
            assert not isinstance(refused, list)
            with pytest.raises(TransactionRefused, match="was not created in your transaction"):
                await refused
        (taken,) = (await engine.claim(session, [a_demand()], 10)).jobs
        assert taken.definition.id == first.id
        await end(engine, taken)
        (taken,) = (await engine.claim(session, [a_demand()], 10)).jobs
        assert taken.definition.id == second.id
