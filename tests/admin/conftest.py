"""A deployment of each test, with an engine and an admin runtime on it."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

from tests.harness.servers.nats_fixtures import *  # noqa: F403 - fixtures, listed there
from trellis.admin.runtime import AdminRuntime
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing import ManualClock

Serving: TypeAlias = Callable[[Engine], AdminRuntime]
#: Reads all rows of a view by the names of its columns, with moments in microseconds.
Read: TypeAlias = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def subjects(nats_url: str) -> AsyncIterator[Subjects]:
    """The names of a deployment of this test alone, whose streams are there."""
    subjects, link = Subjects("t" + secrets.token_hex(6)), Link([nats_url])
    await link.open()
    await topology.migrate(link, subjects, 1, dry_run=False)
    yield subjects
    for part in reversed(topology.parts(subjects, 1)):
        if part.consumer is None:
            await link.api(f"STREAM.DELETE.{part.stream}")
    await link.close()


@pytest.fixture
async def engine(nats_url: str, subjects: Subjects, clock: ManualClock) -> AsyncIterator[Engine]:
    made = JetStreamEngine(nats_url, prefix=subjects.prefix, clock=clock)
    engine = cast("Engine", made)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def tables(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    """The SQL engine whose tables are the projection."""
    engine: Engine = SqliteEngine(tmp_path / "projection.db", clock=clock)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads views of the projection."""

    def read(view: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(tmp_path / "projection.db")) as file:
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(f"select * from {view}")]  # noqa: S608 - ours

    return read


@pytest.fixture
def serving(nats_url: str, subjects: Subjects) -> Serving:
    """Makes an admin runtime over the tables of a SQL engine, not yet opened."""
    return lambda tables: AdminRuntime(Link([nats_url]), subjects, tables)


@pytest.fixture
async def link(nats_url: str) -> AsyncIterator[Link]:
    """A connection of a program beside the runtime."""
    link = Link([nats_url])
    await link.open()
    yield link
    await link.close()


@pytest.fixture
async def whole_runtime(
    nats_url: str, subjects: Subjects, tables: Engine, engine: Engine
) -> AsyncIterator[AdminRuntime]:
    """A runtime that changes jobs, too."""
    async with AdminRuntime(Link([nats_url]), subjects, tables, engine) as runtime:
        yield runtime


@pytest.fixture
async def runtime(serving: Serving, tables: Engine) -> AsyncIterator[AdminRuntime]:
    async with serving(tables) as runtime:
        yield runtime
