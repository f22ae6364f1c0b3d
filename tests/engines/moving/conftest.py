"""Stores of each kind to move between, one of each for a test."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.engines.jetstream.manual import ManualEngine
from tests.engines.postgres.steps import fresh, opened
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from tests.harness.servers.nats_fixtures import *  # noqa: F403
from trellis.admin.export import StreamExporter, stream_exporter
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.postgres import PostgresEngine
from trellis.engines.sqlite import SqliteEngine


@pytest.fixture
async def streams_url(nats_url: str) -> AsyncIterator[str]:
    """A deployment of this test alone, whose streams are there."""
    subjects, link = Subjects("t" + secrets.token_hex(6)), Link([nats_url])
    await link.open()
    await topology.migrate(link, subjects, 1, dry_run=False)
    yield f"{nats_url}?prefix={subjects.prefix}"
    for part in reversed(topology.parts(subjects, 1)):
        if part.consumer is None:
            await link.api(f"STREAM.DELETE.{part.stream}")
    await link.close()


@pytest.fixture
async def streams(streams_url: str) -> AsyncIterator[ManualEngine]:
    """The engine of the deployment; it lists jobs without an admin runtime."""
    server, _, prefix = streams_url.partition("?prefix=")
    engine = ManualEngine(server, prefix=prefix)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def exporter(streams_url: str) -> AsyncIterator[StreamExporter]:
    """The export of the deployment."""
    async with stream_exporter(streams_url) as exporter:
        yield exporter


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    """An empty file."""
    engine = SqliteEngine(tmp_path / "back.db")
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def database_url(postgres_server: Databases) -> Iterator[str]:
    """A database with our tables."""
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[PostgresEngine]:
    """The engine of the database."""
    async with opened(database_url) as engine:
        yield engine
