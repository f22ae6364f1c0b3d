"""The feed of all events: in one order, and nothing that commits late is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.engines.postgres.steps import fresh, opened
from tests.harness.servers.databases import Databases
from trellis.engines.postgres.engine import PostgresEngine
from trellis.engines.postgres.feed import Position
from trellis.testing.builders import a_job


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def _ids(engine: PostgresEngine, after: Position) -> tuple[list[str], Position]:
    entries = await engine.feed(after)
    return [entry.job_id for entry in entries], entries[-1].position if entries else after


async def test_an_event_that_commits_late_is_not_skipped(url: str) -> None:
    async with opened(url) as engine:
        first, late, last = a_job(), a_job(), a_job()
        await engine.create([first])
        with psycopg.connect(url) as caller:
            engine.create_within(caller, [late])
            await engine.create([last])
            seen, position = await _ids(engine, Position())
            assert seen == [first.id]  # the last one waits for the one before it
            caller.commit()
        seen = []
        while len(seen) < 2:  # the engine's own NOTIFY may still be a running transaction
            more, position = await _ids(engine, position)
            seen += more
        assert sorted(seen) == sorted([late.id, last.id])
        assert await _ids(engine, position) == ([], position)


async def test_the_feed_is_read_in_pages(url: str) -> None:
    async with opened(url) as engine:
        jobs = [a_job() for _ in range(7)]
        await engine.create(jobs)
        seen: list[str] = []
        position = Position()
        while entries := await engine.feed(position, limit=3):
            seen += [entry.job_id for entry in entries]
            position = entries[-1].position
        assert seen == [new.id for new in jobs]
