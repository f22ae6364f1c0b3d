"""A projection in a database that several programs store and erase at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.engines.postgres.steps import begun, fresh, opened
from tests.engines.sql.test_projection import STREAM, events_of
from tests.harness.servers.databases import Databases
from trellis.core.commands import Cancel
from trellis.engines.memory import MemoryEngine
from trellis.engines.projection import Place, Projected, Projection
from trellis.engines.sql.projection import PROJECTED
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept, settle

_PAGE = 5
#: What counts transactions, or says when a projection was made.
_OF_THE_DATABASE = {"xid", "rebuilt_at"}


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
async def pair(url: str) -> AsyncIterator[tuple[Projection, Projection]]:
    """The projections of two programs in one database."""
    async with opened(url) as one, opened(url) as two:
        both = one.projection(), two.projection()
        for each in both:  # which prepares their statements
            await each.erase()
        yield both


async def _changes() -> list[Projected]:
    """Return what a stream has of some jobs, half of which have ended."""
    engine = MemoryEngine()
    await engine.open()
    for record in (await accept(engine, *(a_job() for _ in range(30))))[::2]:
        await settle(engine, record, Cancel())
    found = await events_of(engine)
    await engine.close()
    return found


async def _page(projection: Projection, changes: list[Projected]) -> int:
    """Project the next page; return how many messages were left."""
    place = await projection.place(STREAM) or Place(0, stream_id=1)
    page = changes[place.sequence :][:_PAGE]
    if page:
        after = place._replace(sequence=place.sequence + len(page))
        await projection.project(STREAM, place, after, page)
    return len(changes) - place.sequence


async def _whole(projection: Projection, changes: list[Projected]) -> None:
    while await _page(projection, changes):
        pass


def _rows(url: str) -> dict[str, list[str]]:
    """Return all rows of a projection."""
    found = {}
    with psycopg.connect(url, row_factory=dict_row) as connection:
        for table in PROJECTED:
            rows = connection.execute(f"select * from trellis.{table}")  # noqa: S608 - names of ours
            shown = (
                {name: value for name, value in row.items() if name not in _OF_THE_DATABASE}
                for row in rows
            )
            found[table] = sorted(map(str, shown))
    return found


async def _like_a_fresh_one(url: str, changes: list[Projected], server: Databases) -> None:
    other = fresh(server)
    async with opened(other) as engine:
        await _whole(engine.projection(), changes)
    assert _rows(url) == _rows(other)
    server.drop(other)


async def test_a_page_is_stored_before_a_projection_is_erased_or_after_it(
    url: str, pair: tuple[Projection, Projection], postgres_server: Databases
) -> None:
    changes, (one, two) = await _changes(), pair
    await _page(one, changes)
    with psycopg.connect(
        url
    ) as holding:  # some tables are emptied before this one, others after it
        holding.execute("lock table trellis.past_session")
        erasing = await begun(url, one.erase(), 1)
        projecting = await begun(url, _page(two, changes), 2)
    assert await erasing
    await projecting
    await _whole(two, changes)
    await _like_a_fresh_one(url, changes, postgres_server)


async def test_of_two_programs_that_find_a_projection_that_does_not_fit_one_erases_it(
    url: str, pair: tuple[Projection, Projection]
) -> None:
    changes, (one, two) = await _changes(), pair
    await _page(one, changes)
    place = await one.place(STREAM)
    with psycopg.connect(url) as holding:
        holding.execute("lock table trellis.past_session")
        first = await begun(url, one.erase(STREAM, place), 1)
        second = await begun(url, two.erase(STREAM, place), 2)
    assert (await first, await second) == (True, False)


async def test_a_projection_that_is_erased_while_pages_are_stored_equals_a_fresh_one(
    url: str, pair: tuple[Projection, Projection], postgres_server: Databases
) -> None:
    changes, (one, two) = await _changes(), pair

    async def erase() -> None:
        for _ in range(10):
            assert await two.erase()

    erasing = asyncio.create_task(erase())
    while not erasing.done():
        await _page(one, changes)
    await erasing
    await _whole(one, changes)
    await _like_a_fresh_one(url, changes, postgres_server)
