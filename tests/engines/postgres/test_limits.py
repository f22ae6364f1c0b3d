"""Limits with many who claim at the same time, on real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.engines.limit_races import exceeds, journals, most_at_once, prepare, work
from tests.engines.postgres.steps import during, fresh, opened
from tests.harness.servers.databases import Databases
from trellis.core.durations import SECOND
from trellis.core.limits import Limit
from trellis.testing.builders import a_demand, a_worker

pytestmark = pytest.mark.on_postgres(16, 18)
LOWER = """
    update trellis.job_limit
    set override = '{"active": 1, "parts": ["active"]}', version = version + 1
"""


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.mark.parametrize("limit", [Limit(active=4), Limit(rate="40/1s", burst=5)], ids=str)
async def test_many_claimers_never_exceed_a_limit(url: str, limit: Limit) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(opened(url)) for _ in range(8)]
        ids = await prepare(engines[0], limit, 60)
        done = await asyncio.gather(*(work(engine, 3) for engine in engines))
        events = await journals(engines[0], ids)
    assert sum(done) == len(ids)
    if limit.active is not None:
        assert most_at_once(events) <= limit.active
    if limit.bucket is not None:
        assert not exceeds(events, limit.bucket)


async def test_the_first_claim_of_a_worker_counts_by_a_limit_that_changes_during_it(
    url: str,
) -> None:
    async with opened(url) as engine, opened(url) as starting:
        await prepare(engine, Limit(active=4), 10)
        session = (await starting.open_session(a_worker(), 30 * SECOND)).id
        taken = await during(url, LOWER, starting.claim(session, [a_demand()], 10))
    assert len(taken.jobs) == 1
