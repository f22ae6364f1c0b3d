"""Many who create jobs of the same tenants at the same time: none waits in a circle, turns hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from tests.engines.postgres.steps import PATIENCE, fresh, opened
from tests.harness.servers.databases import Databases
from trellis.core.durations import SECOND
from trellis.core.job import NewJob, Relations
from trellis.engines.values import Accepted
from trellis.testing.builders import a_demand, a_job, a_worker

pytestmark = pytest.mark.on_postgres(16, 18)


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


def of(tenants: str) -> list[NewJob]:
    return [a_job(relations=Relations(tenant=tenant)) for tenant in tenants]


async def test_creators_of_the_same_tenants_wait_in_one_order(url: str) -> None:
    async with opened(url) as one, opened(url) as two, opened(url) as three:
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(
                *(one.create(of("abcdef")) for _ in range(10)),
                *(two.create(of("fedcba")) for _ in range(10)),
                *(three.create(of("cafebd")) for _ in range(10)),
            )
        assert all(isinstance(each, Accepted) for answer in answers for each in answer)
        session = (await one.open_session(a_worker(), 30 * SECOND)).id
        served = []
        while jobs := (await one.claim(session, [a_demand()], 12)).jobs:
            served.append(Counter((job.definition.relations or Relations()).tenant for job in jobs))
        assert served == [Counter("abcdef" * 2)] * 15


async def test_no_two_jobs_of_a_tenant_get_the_same_turn(url: str) -> None:
    async with opened(url) as one, opened(url) as two:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(
                *(engine.create(of("aaaaa")) for engine in (one, two) for _ in range(10))
            )
        with psycopg.connect(url) as sql:
            found = sql.execute(
                "select count(distinct rank), count(*) from trellis.queue"
            ).fetchone()
        assert found == (100, 100)


async def test_jobs_of_a_callers_transaction_take_their_turn_after_its_commit(url: str) -> None:
    async with opened(url) as engine:
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        await engine.create(of("aaa"))
        async with await psycopg.AsyncConnection.connect(url) as caller:
            answers = engine.create_within(caller, of("bb"))
            assert not isinstance(answers, list)
            await answers
            # The open transaction holds no share: other creators of the tenant go on.
            async with asyncio.timeout(PATIENCE):
                await engine.create(of("b"))
            await caller.commit()
        jobs = (await engine.claim(session, [a_demand()], 6)).jobs
        served = "".join((job.definition.relations or Relations()).tenant or "-" for job in jobs)
        assert served == "ababab"
