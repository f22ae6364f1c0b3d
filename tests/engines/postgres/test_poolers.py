"""Behind a transaction pooler: no state of a connection is needed, and everything still works."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.engines.postgres.steps import fresh, opened, state_of, with_options
from tests.harness.servers.databases import Databases
from tests.harness.servers.pooler import Pooler
from trellis import Service
from trellis.engines.values import JobFilter
from trellis.testing.builders import a_job

pytestmark = pytest.mark.on_postgres(16)


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
def pooled(url: str) -> Iterator[str]:
    with Pooler(url) as pooler:
        yield with_options(pooler.url, pooler="transaction")


async def test_a_worker_runs_jobs_behind_a_transaction_pooler(pooled: str) -> None:
    shop = Service("shop", pooled)

    @shop.job
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async with shop, shop.worker(poll="50ms"):
        refs = await greet.create_many([str(number) for number in range(60)])
        results = await asyncio.gather(*(ref.wait("30s") for ref in refs))
        assert results[7] == "Hello, 7!"
        engine = await shop.connection.engine()
        assert (await engine.count(JobFilter(), "state")).groups == {"completed": 60}
        assert (await engine.health()).facts["wake_up"] == "poll"


async def test_listening_past_the_pooler_wakes_a_watcher(url: str, pooled: str) -> None:
    past = with_options(pooled, listen=quote(url, safe=""))
    async with opened(past) as engine, opened(url) as other:
        heard = asyncio.ensure_future(anext(engine.watch(["ready"])))
        async with asyncio.timeout(30):
            while not heard.done():
                await other.create([new := a_job()])
                await asyncio.wait({heard}, timeout=0.3)
        assert await state_of(engine, new.id) == "pending"
        assert (await engine.health()).facts["wake_up"] == "listen"
