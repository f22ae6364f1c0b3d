"""The feed on PostgreSQL: nothing that commits late is skipped, and far pages are found."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.engines.postgres.steps import fresh, opened
from tests.harness.servers.databases import Databases
from trellis.testing.builders import a_job
from trellis.testing.conformance.feed import read, read_until


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def test_an_event_that_commits_late_is_not_skipped(url: str) -> None:
    async with opened(url) as engine:
        first, late, last = a_job(), a_job(), a_job()
        await engine.create([first])
        (entry,) = await read_until(engine, None, 1)
        assert entry.job_id == first.id
        with psycopg.connect(url) as caller:
            engine.create_within(caller, [late])
            await engine.create([last])
            page = await read(engine, entry.cursor)
            assert page.entries == ()  # the last one waits for the one before it
            from_now = await read(engine, "now")
            caller.commit()
        seen = await read_until(engine, page.cursor, 2)
        assert [each.job_id for each in seen] == [late.id, last.id]
        # What was committed behind a running transaction counts as later than now.
        assert await read_until(engine, from_now.cursor, 2) == seen


async def test_events_far_apart_are_found(url: str) -> None:
    async with opened(url) as engine:
        first, last = a_job(), a_job()
        await engine.create([first])
        with psycopg.connect(url, autocommit=True) as other:
            for _ in range(3000):
                other.execute("select pg_current_xact_id()")
        await engine.create([last])
        seen = await read_until(engine, None, 2)
        assert [each.job_id for each in seen] == [first.id, last.id]
        assert [each.job_id for each in (await read(engine, seen[0].cursor)).entries] == [last.id]


async def test_the_doctor_reports_how_far_the_feed_is_behind(url: str) -> None:
    async with opened(url) as engine:
        with psycopg.connect(url) as other:
            other.execute("select pg_current_xact_id()")
            facts = (await engine.health()).facts
        assert facts["feed_lag_seconds"] >= 0
