"""Limits with many who claim at the same time, on real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.engines.limit_races import exceeds, journals, most_at_once, prepare, work
from tests.engines.postgres.steps import fresh, opened
from tests.harness.servers.databases import Databases
from trellis.core.limits import Limit

pytestmark = pytest.mark.on_postgres(16, 18)


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
