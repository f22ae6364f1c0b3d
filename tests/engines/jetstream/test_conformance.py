"""The conformance suite on a NATS server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.testing import ManualClock
from trellis.testing.conformance import *  # noqa: F403 - the suite is what is imported


@pytest.fixture
def engine_name() -> str:
    return "jetstream"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(nats_url: str, deployed: Subjects, clock: ManualClock) -> AsyncIterator[Engine]:
    engine = ManualEngine(nats_url, prefix=deployed.prefix, clock=clock)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def another(
    nats_url: str, deployed: Subjects, clock: ManualClock
) -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    async with AsyncExitStack() as opened:

        async def open_another() -> Engine:
            engine = ManualEngine(nats_url, prefix=deployed.prefix, clock=clock)
            await engine.open()
            opened.push_async_callback(engine.close)
            return engine

        yield open_another


@pytest.fixture
def caller() -> object:
    return object()
