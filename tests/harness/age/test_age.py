"""Claims cost the same on an old database; what is old goes in pages, found by an index."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import psycopg
import pytest

from tests.engines.postgres.steps import PATIENCE, fresh, opened
from tests.harness.age.filling import SPACING, Sql, add_backlog, add_dead, add_finished
from tests.harness.age.meter import Cost, Meter, keep_vacuum_away
from tests.harness.servers.databases import Databases
from trellis.engines.postgres.claim_planner import LAG
from trellis.testing.builders import QUEUE, SERVICE, TYPE, a_demand, a_job

pytestmark = pytest.mark.on_postgres(18)

_TABLES = ("queue", "job", "event", "outcome", "session", "key_slot")
#: So many jobs are due within the time by which a scan starts before the last claim.
_BEHIND = LAG // SPACING
#: A claim on an old database may touch so many times the pages of one on a fresh database.
_PAGES = 1.5


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
def sql(url: str) -> Iterator[Sql]:
    with psycopg.connect(url, autocommit=True) as connection:
        keep_vacuum_away(connection, _TABLES)
        yield connection


@contextmanager
def held_horizon(url: str) -> Iterator[None]:
    """Look at the database once and then hold on to what was seen."""
    with psycopg.connect(url) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select from trellis.meta")
        yield


async def costs(meter: Meter, count: int) -> list[Cost]:
    """Return what claims cost, without the first, which reads the catalogue as well."""
    found = [await meter.claim_and_complete() for _ in range(count + 1)][1:]
    assert all(cost.jobs == 100 for cost in found)
    return found


def pages(found: list[Cost]) -> float:
    return median(cost.pages for cost in found)


async def test_a_claim_costs_the_same_with_a_large_backlog_and_history(url: str, sql: Sql) -> None:
    async with opened(url) as engine:
        meter = await Meter.of(engine, sql)
        add_backlog(sql, 1000)
        young = await costs(meter, 5)
        add_finished(sql, 150_000)
        add_backlog(sql, 100_000)
        old = await costs(meter, 10)
    assert pages(old) <= _PAGES * pages(young)
    # All that the claims before took may still be in the way, nothing of the rest.
    assert max(cost.entries for cost in old) <= 16 * 100 + 100


async def test_a_claim_costs_the_same_while_somebody_holds_an_old_snapshot(
    url: str, sql: Sql
) -> None:
    async with opened(url) as engine:
        meter = await Meter.of(engine, sql)
        add_backlog(sql, 600)
        young = await costs(meter, 5)
        with held_horizon(url):
            add_dead(sql, 200_000)
            add_backlog(sql, 5000)
            first = await meter.claim_and_complete()
            old = await costs(meter, 40)
    assert first.entries > 200_000  # they are in the way
    assert median(cost.entries for cost in old) <= _BEHIND + 200
    assert pages(old) <= _PAGES * pages(young)


async def test_what_comes_back_behind_the_cursor_is_found_under_a_held_horizon(
    url: str, sql: Sql
) -> None:
    async with opened(url) as engine:
        meter = await Meter.of(engine, sql)
        new = a_job(delay=3600_000_000)
        await engine.create([new])
        with held_horizon(url):
            add_dead(sql, 200_000)
            add_backlog(sql, 3000)
            by_cursor = await costs(meter, 10)
            assert median(cost.entries for cost in by_cursor) <= _BEHIND + 200
            sql.execute(
                "update trellis.queue set availability = 'ready', run_at = 0 "
                "where availability = 'scheduled'"
            )
            found: set[str] = set()
            async with asyncio.timeout(PATIENCE):
                while new.id not in found:
                    claimed = await engine.claim(meter.session, [a_demand()], 100)
                    found |= {record.definition.id for record in claimed.jobs}


async def test_lanes_in_which_nothing_waits_are_passed_over_under_a_held_horizon(
    url: str, sql: Sql
) -> None:
    async with opened(url) as engine:
        meter = await Meter.of(engine, sql, [a_demand(TYPE, "refund", limit=200)])
        with held_horizon(url):
            add_dead(sql, 200_000)
            add_backlog(sql, 5000, (SERVICE, QUEUE, "refund"))
            first = await meter.claim_and_complete()
            old = await costs(meter, 30)
    assert first.entries > 200_000
    # Near the last claim in each lane.
    assert median(cost.entries for cost in old) <= 2 * _BEHIND + 400
