"""Maintenance by servers: one of them leads, jobs are due without a worker, the lead passes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.worker.faulty import eventually
from trellis import Service
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.server import create_app
from trellis.testing.builders import a_job
from trellis.worker.maintenance import LEADER


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """A store whose servers look often."""
    monkeypatch.setenv("TRELLIS_SWEEP", "100ms")
    monkeypatch.setenv("TRELLIS_POLL", "50ms")
    engine = SqliteEngine(tmp_path / "jobs.db")
    await engine.open()
    yield engine
    await engine.close()


async def leaders(engine: Engine) -> list[str]:
    """Return the names of the processes that lead."""
    return [each.worker for each in await engine.locks() if each.name == LEADER]


async def test_a_server_ends_jobs_whose_deadline_has_passed_without_a_worker(
    engine: Engine,
) -> None:
    new = a_job(deadline_in=1000)
    await engine.create([new])
    app = create_app(engine=engine, maintenance=True)

    async def has_expired() -> bool:
        (record,) = (await engine.load([new.id])).records
        return record is not None and record.head.state is State.EXPIRED

    async with app.router.lifespan_context(app):
        await eventually(has_expired)
        (name,) = await leaders(engine)
        assert name.startswith("serve-")
        assert [each.is_worker for each in await engine.sessions()] == [False]
    assert await leaders(engine) == []


async def test_schedules_are_due_without_a_worker(engine: Engine, tmp_path: Path) -> None:
    service = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")

    @service.job
    async def tick() -> None: ...

    service.schedule(tick, every="1s")
    async with service:
        async with service.worker():  # stores the schedule
            pass
        app = create_app(engine=engine, maintenance=True)

        async def has_fired() -> bool:
            return bool(await engine.slots("shop", "tick"))

        async with app.router.lifespan_context(app):
            await eventually(has_fired)


async def test_one_of_two_servers_leads_and_the_other_takes_over(
    engine: Engine, tmp_path: Path
) -> None:
    second = SqliteEngine(tmp_path / "jobs.db")
    await second.open()
    one = create_app(engine=engine, maintenance=True)
    other = create_app(engine=second, maintenance=True)

    async def is_led() -> bool:
        return len(await leaders(second)) == 1

    async with other.router.lifespan_context(other):
        async with one.router.lifespan_context(one):
            await eventually(is_led)
        await eventually(is_led)
    await second.close()


async def test_without_maintenance_a_server_opens_no_session(engine: Engine) -> None:
    app = create_app(engine=engine)
    async with app.router.lifespan_context(app):
        assert await engine.sessions() == []
