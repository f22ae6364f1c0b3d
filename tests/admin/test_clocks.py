"""A projection on a machine whose clock is wrong: the time of the engine decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from trellis.admin.janitor import Janitor
from trellis.admin.runtime import AdminRuntime
from trellis.core.durations import SECOND, Micros, micros
from trellis.core.policy import Policy
from trellis.core.states import State
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import JobFilter
from trellis.testing import ManualClock
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import a_session, accept, accept_one, head, start

_WRONG: Micros = micros("10m")


@pytest.fixture
async def engine(nats_url: str, subjects: Subjects) -> AsyncIterator[Engine]:
    """An engine with the time of the server."""
    made = JetStreamEngine(nats_url, prefix=subjects.prefix)
    engine = cast("Engine", made)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def table_clock(engine: Engine) -> ManualClock:
    """The clock of the machine with the projection."""
    return ManualClock(await engine.now())


@pytest.fixture
async def tables(tmp_path: Path, table_clock: ManualClock) -> AsyncIterator[Engine]:
    tables: Engine = SqliteEngine(tmp_path / "projection.db", clock=table_clock)
    await tables.open()
    yield tables
    await tables.close()


async def test_a_clock_that_is_ahead_expires_nothing_and_moves_no_time(
    runtime: AdminRuntime, engine: Engine, table_clock: ManualClock
) -> None:
    table_clock.step_wall("10m")
    waiting = await accept_one(engine, a_job(deadline_in=60 * SECOND))
    slow = a_job(policy=Policy(timeout=60 * SECOND), type="slow")
    taken = await start(engine, await a_session(engine), slow)
    due = await engine.due("jobs", 10)
    assert due.jobs == ()
    assert await Janitor(engine).sweep() == 0
    assert (await head(engine, waiting)).state is State.PENDING
    assert await head(engine, taken) == taken.head
    bound = table_clock.now() - _WRONG // 2
    seen = (
        due.now,
        (await engine.find(JobFilter())).as_of,
        (await engine.count(JobFilter())).as_of,
    )
    assert max(*seen, (await engine.rates()).as_of, await engine.now()) < bound


async def test_a_clock_that_is_behind_delays_nothing(
    runtime: AdminRuntime, engine: Engine, table_clock: ManualClock
) -> None:
    table_clock.step_wall("10m", back=True)
    late, _ = await accept(engine, a_job(deadline_in=1), a_job(delay=1))
    assert await Janitor(engine).sweep() == 1
    assert (await head(engine, late)).state is State.EXPIRED
    assert await engine.promote(10) == 1
    assert await engine.promote(10) == 0
