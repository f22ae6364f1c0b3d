"""The public conformance suite, run on the embedded engines and through the wrapper."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import COLLECTED
from trellis.engines.instrumented import instrumented
from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing import ManualClock, conformance
from trellis.testing.conformance import *  # noqa: F403 - the suite is what is imported
from trellis.testing.conformance.caller_transaction import CallerConnection

#: `instrumented` is the memory engine inside the wrapper that reports every call.
ENGINES: Final = ("memory", "instrumented", "sqlite")


@pytest.fixture(
    params=[
        pytest.param(each, marks=pytest.mark.long if each == "instrumented" else ())
        for each in ENGINES
    ]
)
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def _make(engine_name: str, clock: ManualClock, folder: Path) -> Engine:
    if engine_name == "memory":
        return MemoryEngine(clock=clock)
    if engine_name == "instrumented":
        return instrumented(MemoryEngine(clock=clock), lambda _: None)
    return SqliteEngine(str(folder / "jobs.db"), clock=clock)


@pytest.fixture
async def engine(engine_name: str, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Engine]:
    engine = _make(engine_name, clock, tmp_path)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def another(
    engine_name: str, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    async with AsyncExitStack() as opened:

        async def open_another() -> Engine:
            engine = _make(engine_name, clock, tmp_path)
            await engine.open()
            opened.push_async_callback(engine.close)
            return engine

        yield open_another


class NoTransaction:
    """What a test of the application may pass for a connection when jobs are kept in memory."""

    def commit(self) -> None:
        """Everything is stored already."""

    def rollback(self) -> None:
        raise NotImplementedError("The memory engine rolls nothing back.")


@pytest.fixture
def caller(engine_name: str, engine: Engine, tmp_path: Path) -> Iterator[CallerConnection]:
    if not engine.capabilities.transactions:
        yield NoTransaction()
        return
    connection = sqlite3.connect(tmp_path / "jobs.db")
    yield connection
    connection.close()


@pytest.mark.parametrize("name", ENGINES)
def test_no_engine_runs_fewer_tests_than_declared(name: str, pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[COLLECTED][name] >= conformance.DECLARED


def test_only_the_memory_engine_lacks_a_capability(engine: Engine, engine_name: str) -> None:
    assert engine_name != "sqlite" or all(engine.capabilities)
    known = engine.capabilities._fields
    assert all(each in known for needed in conformance.NEEDS.values() for each in needed)
