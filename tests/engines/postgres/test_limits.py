"""Limits with many who claim at the same time, on real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.engines.limit_races import (
    KEYS,
    LARGEST,
    RATES,
    SCOPE,
    Changes,
    exceeds,
    journals,
    most_at_once,
    prepare,
    work,
)
from tests.engines.postgres.steps import during, fresh, opened
from tests.harness.servers.databases import Databases
from trellis.core.durations import SECOND
from trellis.core.limits import Limit, Scope
from trellis.testing.builders import a_demand, a_worker

pytestmark = [pytest.mark.long, pytest.mark.on_postgres(16, 18)]
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


@pytest.mark.parametrize("scope", [SCOPE, KEYS], ids=["queue", "key"])
async def test_a_rate_that_changes_under_load_is_not_exceeded(url: str, scope: Scope) -> None:
    changes = Changes(scope)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(opened(url)) for _ in range(4)]
        ids = await prepare(engines[0], RATES[0], 90, scope)
        done = await asyncio.gather(*(work(engine, 3, changes) for engine in engines))
        events = await journals(engines[0], ids)
    assert sum(done) == len(ids)
    assert changes.made > len(RATES), "it was raised and lowered more than once"
    assert not exceeds(events, LARGEST)


async def test_many_claimers_never_exceed_the_rate_of_a_key(url: str) -> None:
    limit = Limit(rate="40/1s", burst=5)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(opened(url)) for _ in range(8)]
        ids = await prepare(engines[0], limit, 60, KEYS)
        done = await asyncio.gather(*(work(engine, 3) for engine in engines))
        events = await journals(engines[0], ids)
    assert sum(done) == len(ids)
    assert limit.bucket is not None
    assert not exceeds(events, limit.bucket)
