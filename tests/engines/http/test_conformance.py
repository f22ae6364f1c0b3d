"""The public conformance suite through the HTTP engine and a real server, over SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.conftest import COLLECTED
from tests.harness.app_server import AppServer
from trellis.engines.http.engine import http_engine
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing import ManualClock, conformance
from trellis.testing.conformance import *  # noqa: F403 - the suite is what is imported

pytestmark = pytest.mark.long


@pytest.fixture(params=["http"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock(engine_name: str) -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(app_server: AppServer, clock: ManualClock, tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "jobs.db")
    with app_server.serving(lambda: SqliteEngine(path, clock=clock)) as url:
        yield url


@pytest.fixture
async def another(url: str) -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    async with AsyncExitStack() as opened:

        async def open_another() -> Engine:
            engine = http_engine(url)
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


def test_no_engine_runs_fewer_tests_than_declared(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[COLLECTED]["http"] >= conformance.DECLARED


def test_only_transactions_of_the_caller_are_not_offered(engine: Engine) -> None:
    lacking = {name for name, has in engine.capabilities._asdict().items() if not has}
    assert lacking == {"transactions", "one_writer", "caller_transactions"}
