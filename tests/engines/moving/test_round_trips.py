"""Moving to NATS JetStream and back: everything arrives as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engines.jetstream.manual import ManualEngine
from tests.engines.moving.estate import Estate, entries, found, survey
from tests.engines.postgres.steps import fresh, opened
from tests.engines.postgres.test_moving import storable
from tests.harness.servers.databases import Databases
from trellis.admin.export import StreamExporter
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.transfer import Exporter
from trellis.engines.values import Accepted
from trellis.errors import MoveRefused
from trellis.operations.transfer import Endpoint, Moved, move
from trellis.testing.builders import a_job

MIA = By("mia", "to and fro")


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    await found(tmp_path / "jobs.db")
    engine = SqliteEngine(tmp_path / "jobs.db")
    await engine.open()
    yield engine
    await engine.close()


async def carry(
    source: Engine, target: Engine, exporter: Exporter | None = None, *, history: bool = True
) -> Moved:
    """Move in batches of a few."""
    here, there = Endpoint(source, "here", exporter), Endpoint(target, "there")
    return await move(here, there, MIA, history=history, batch_size=4)


def same(before: Estate, after: Estate) -> None:
    """Compare part by part, so that a difference is easy to see."""
    assert list(after.things) == list(before.things)
    for job_id, thing in before.things.items():
        assert after.things[job_id] == thing
    for name, value in before.settings.items():
        assert (name, after.settings[name]) == (name, value)
    assert after.batches == before.batches
    assert after.links == before.links


async def test_from_a_file_to_streams_and_back_everything_stays_as_it_was(
    source: SqliteEngine, streams: ManualEngine, exporter: StreamExporter, file: SqliteEngine
) -> None:
    before, told = await survey(source), await entries(source)
    moved = await carry(source, streams)
    assert (moved.copied, moved.left, moved.is_finished) == (len(before.things), 0, True)
    same(before, await survey(streams))
    moved = await carry(streams, file, exporter)
    assert (moved.copied, moved.left, moved.is_finished) == (len(before.things), 0, True)
    same(before, await survey(file))
    assert (await entries(file))[: len(told)] == told


async def test_a_store_whose_jobs_were_moved_away_takes_none_and_the_other_one_stays_open(
    source: SqliteEngine, streams: ManualEngine, exporter: StreamExporter, file: SqliteEngine
) -> None:
    await carry(source, streams)
    with pytest.raises(MoveRefused, match="moved to there before"):
        await carry(streams, source, exporter)
    assert await streams.create([new := a_job()]) == [Accepted(new.id)]
    await carry(streams, file, exporter)
    with pytest.raises(MoveRefused, match="moved to there before"):
        await carry(file, streams)
    assert await file.create([new := a_job()]) == [Accepted(new.id)]


@pytest.mark.on_postgres(18)
async def test_a_database_whose_jobs_were_moved_away_takes_none(
    source: SqliteEngine, database: PostgresEngine, file: SqliteEngine
) -> None:
    await carry(source, database)
    await carry(database, file)
    with pytest.raises(MoveRefused, match="moved to there before"):
        await carry(file, database)
    assert await file.create([new := a_job()]) == [Accepted(new.id)]


@pytest.mark.on_postgres(18)
async def test_from_a_database_to_streams_and_back_everything_stays_as_it_was(
    source: SqliteEngine,
    database: PostgresEngine,
    streams: ManualEngine,
    exporter: StreamExporter,
    postgres_server: Databases,
) -> None:
    await carry(source, database)
    before = await survey(database)
    moved = await carry(database, streams)
    assert (moved.copied, moved.left) == (len(before.things), 0)
    same(before, await survey(streams))
    url = fresh(postgres_server)
    async with opened(url) as back:
        moved = await carry(streams, back, exporter)
        assert (moved.copied, moved.left) == (len(before.things), 0)
        same(before, await survey(back))
    postgres_server.drop(url)


@pytest.mark.on_postgres(18)
async def test_from_a_database_to_a_file_everything_stays_as_it_was(
    source: SqliteEngine, database: PostgresEngine, file: SqliteEngine
) -> None:
    await carry(source, database)
    await carry(database, file)
    before = await survey(source)
    things = {job_id: storable(thing) for job_id, thing in before.things.items()}
    same(before._replace(things=things), await survey(file))
