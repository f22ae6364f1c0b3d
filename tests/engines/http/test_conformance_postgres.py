"""The public conformance suite through the HTTP engine and a real server, over PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from tests.engines.postgres.told_time import clock, url  # noqa: F401 - fixtures are found by name
from tests.harness.app_server import AppServer
from trellis.engines.http.engine import http_engine
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine, claim_planner
from trellis.testing.conformance import *  # noqa: F403 - the suite is what is imported

pytestmark = [pytest.mark.long, pytest.mark.on_postgres(18)]


@pytest.fixture
def served(app_server: AppServer, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:  # noqa: F811
    # A slow claim leaves out older jobs for a while; on a busy machine any claim may be slow.
    monkeypatch.setattr(claim_planner, "SLOW_FROM", float("inf"))
    with app_server.serving(lambda: PostgresEngine(url)) as served:
        yield served


@pytest.fixture
async def another(served: str) -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    async with AsyncExitStack() as opened:

        async def open_another() -> Engine:
            engine = http_engine(served)
            await engine.open()
            opened.push_async_callback(engine.close)
            return engine

        yield open_another


@pytest.fixture
async def engine(another: Callable[[], Awaitable[Engine]]) -> Engine:
    return await another()


@pytest.fixture
def caller() -> None:
    """No connection: no transaction can be joined through a server."""
