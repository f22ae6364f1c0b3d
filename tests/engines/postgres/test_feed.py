"""The feed of all events: in one order, and nothing that commits late is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.engines.postgres.steps import fresh, opened
from tests.harness.servers.databases import Databases
from trellis.engines.postgres.engine import PostgresEngine
from trellis.engines.postgres.reading import Place
from trellis.testing.builders import a_job


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def _ids(engine: PostgresEngine, after: Place) -> tuple[list[str], Place]:
    entries = await engine.feed(after)
    return [entry.job_id for entry in entries], entries[-1].place if entries else after


async def test_an_event_that_commits_late_is_not_skipped(url: str) -> None:
    async with opened(url) as engine:
        first, late, last = a_job(), a_job(), a_job()
        await engine.create([first])
        with psycopg.connect(url) as caller:
            engine.create_within(caller, [late])
            await engine.create([last])
            seen, place = await _ids(engine, Place())
            assert seen == [first.id]  # the last one waits for the one before it
            caller.commit()
        seen, place = await _ids(engine, place)
        assert sorted(seen) == sorted([late.id, last.id])
        assert await _ids(engine, place) == ([], place)


async def test_the_feed_is_read_in_pages(url: str) -> None:
    async with opened(url) as engine:
        jobs = [a_job() for _ in range(7)]
        await engine.create(jobs)
        seen: list[str] = []
        place = Place()
        while entries := await engine.feed(place, limit=3):
            seen += [entry.job_id for entry in entries]
            place = entries[-1].place
        assert seen == [new.id for new in jobs]
