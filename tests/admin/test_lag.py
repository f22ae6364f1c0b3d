"""How far a projection is behind is seen by the doctor and in the metrics; reads are answered."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.admin.conftest import Serving
from trellis.admin import internal
from trellis.admin.runtime import AdminRuntime
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.projection import IsProjected
from trellis.engines.values import JobFilter
from trellis.telemetry.metrics import PROJECTION_BEHIND, PROJECTION_LAG
from trellis.telemetry.store import StoreMetrics
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept

#: Seconds that a request waits for the projection in these tests.
LIMIT = 0.2


async def test_a_projector_that_stands_still_is_so_many_messages_and_seconds_behind(
    engine: Engine, tables: Engine, serving: Serving, subjects: Subjects
) -> None:
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
        await runtime.jobs.stop()
        await accept(engine, *(a_job() for _ in range(5)))
        assert isinstance(engine, IsProjected)
        jobs, state = await engine.projection_lag()
        assert (jobs.stream, jobs.messages) == (subjects.jobs, 5)
        assert jobs.seconds > 0
        assert (state.stream, state.messages) == (subjects.state, 0)
        health = await engine.health()
        assert f"5 messages of {subjects.jobs}" in health.facts["projection"]


async def test_the_metrics_of_the_store_have_the_lag(
    engine: Engine, runtime: AdminRuntime, subjects: Subjects
) -> None:
    await accept(engine, a_job())
    assert await runtime.answers.catch_up()
    read = await StoreMetrics().read(engine)
    assert read[PROJECTION_BEHIND.name] == {(subjects.jobs,): 0, (subjects.state,): 0}
    assert read[PROJECTION_LAG.name] == {(subjects.jobs,): 0.0, (subjects.state,): 0.0}
    assert (await engine.health()).facts["projection"] == "up to date"


async def test_without_a_runtime_the_health_says_what_to_start(engine: Engine) -> None:
    assert "trellis jobs serve" in (await engine.health()).facts["projection"]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file: other connections read it, and store nothing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("begin immediate")
        yield
        file.execute("rollback")


async def test_a_read_is_answered_after_its_limit_and_with_everything_once_that_is_stored(
    engine: Engine, runtime: AdminRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = await accept(engine, a_job(), a_job())
    assert list((await engine.find(JobFilter())).jobs) == known[::-1]
    with locked(tmp_path / "projection.db"), monkeypatch.context() as patch:
        patch.setattr(internal, "LAG_LIMIT", LIMIT)
        late = await accept(engine, a_job())
        began = time.monotonic()
        assert list((await engine.find(JobFilter())).jobs) == known[::-1]
        found_at = time.monotonic()
        assert (await engine.count(JobFilter(), "state")).groups == {"pending": 2}
        counted_at = time.monotonic()
        assert not await runtime.answers.catch_up()
    assert min(found_at - began, counted_at - found_at) >= LIMIT
    assert max(found_at - began, counted_at - found_at) < internal.LAG_LIMIT
    assert list((await engine.find(JobFilter())).jobs) == [*late, *known[::-1]]
    assert (await engine.count(JobFilter(), "state")).groups == {"pending": 3}
