"""The conformance suite on a NATS server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.engines.jetstream.manual import ServedEngine
from trellis.admin.runtime import AdminRuntime
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing import ManualClock
from trellis.testing.conformance import *  # noqa: F403 - the suite is what is imported

pytestmark = pytest.mark.long


@pytest.fixture
def engine_name() -> str:
    return "jetstream"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tables(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    """The SQL engine whose tables are the projection."""
    tables = SqliteEngine(str(tmp_path / "projection.db"), clock=clock)
    await tables.open()
    yield tables
    await tables.close()


@pytest.fixture
async def engine(
    nats_url: str, deployed: Subjects, clock: ManualClock, tables: Engine
) -> AsyncIterator[Engine]:
    engine = ServedEngine(nats_url, prefix=deployed.prefix, clock=clock)
    await engine.open()
    async with AdminRuntime(Link(nats_url.split(",")), deployed, tables):
        yield engine
    await engine.close()


@pytest.fixture
async def another(
    nats_url: str, deployed: Subjects, clock: ManualClock
) -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    async with AsyncExitStack() as opened:

        async def open_another() -> Engine:
            engine = ServedEngine(nats_url, prefix=deployed.prefix, clock=clock)
            await engine.open()
            opened.push_async_callback(engine.close)
            return engine

        yield open_another


@pytest.fixture
def caller() -> object:
    return object()
