"""The log of a worker that only speaks HTTP: an attempt keeps so many lines on all servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.server.profiles.steps import Store
from trellis.engines.port import Engine
from trellis.server import create_app
from trellis.testing.builders import a_job


@pytest.fixture(autouse=True)
def _few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.server.profiles.attempt_log.LINES_LIMIT", 12)


async def messages(store: Store, job_id: str) -> list[str]:
    return [line["message"] for line in await store.read(f"/api/jobs/{job_id}/logs")]


async def test_lines_above_the_limit_are_dropped_and_counted(store: Store) -> None:
    await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    answers = [(await worker.log(job, *[f"{n}"] * 5)).json() for n in range(25)]
    assert [(each["stored"], each["dropped"]) for each in answers] == [
        (5, 0), (5, 0), (2, 3), *[(0, 5)] * 22,
    ]  # fmt: skip
    assert (await messages(store, job["id"]))[10:] == [
        "2", "2",
        "An attempt keeps 12 lines; 3 more were dropped.",
        "An attempt keeps 12 lines; 13 more were dropped.",
        "An attempt keeps 12 lines; 103 more were dropped.",
    ]  # fmt: skip


async def test_all_servers_of_a_store_count_together(
    store: Store, another: Callable[[], Awaitable[Engine]]
) -> None:
    app = create_app(engine=await another())
    await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    async with app.router.lifespan_context(app):
        for _ in range(4):
            await worker.log(job, *["one"] * 2)
            await worker.log(job, *["two"] * 2, app=app)
        assert (await worker.log(job, "late", app=app)).json() == {"stored": 0, "dropped": 1}
    found = await messages(store, job["id"])
    assert (found.count("one"), found.count("two")) == (6, 6)


async def test_a_retried_job_keeps_as_many_lines_again(store: Store) -> None:
    await store.create(a_job())
    worker = await store.worker()
    for _ in range(2):
        job = await worker.claim()
        assert (await worker.log(job, *["line"] * 14)).json() == {"stored": 12, "dropped": 2}
        await worker.report(job, "FAILED")
        store.clock.advance("1h")
        await store.engine.promote(10)
    assert (await messages(store, job["id"])).count("line") == 24
