"""Batches in a sandbox: the rest of a batch is cancelled although no maintenance runs."""

from __future__ import annotations

import pytest

from trellis import ActiveJob, Retry, Service
from trellis.testing import sandbox

app = Service("press")


@app.job(retry=Retry.never())
def write(chapter: int) -> int:
    if chapter < 0:
        raise ValueError("no such chapter")
    return chapter


@app.job
async def stop(job: ActiveJob[None]) -> None:
    assert job.batch is not None
    await app.batch_ref(job.batch.id).cancel("enough")


@app.job
async def plan(job: ActiveJob[None]) -> None:
    await job.spawn(write, -1)
    await job.spawn(write, 1)


@app.job
async def bind(job: ActiveJob[None]) -> list[str]:
    assert job.batch is not None
    return [member.state.value async for member in job.batch.members()]


@pytest.mark.parametrize("before", [0, 3])
def test_a_failed_member_cancels_the_rest(before: int) -> None:
    with sandbox() as box:
        with app.batch(then=bind, on_failure="cancel_rest") as batch:
            batch.create_many_sync(write, [*range(before), -1, 1, 2, 3])
        box.run_all_sync(raise_errors=False)
        (fan_in,) = box.created(bind)
        assert fan_in.result == [*["completed"] * before, "dead", *["cancelled"] * 3]


def test_a_spawned_member_that_fails_cancels_the_rest() -> None:
    with sandbox() as box:
        with app.batch(then=bind, on_failure="cancel_rest") as batch:
            batch.create_sync(plan)
        box.run_all_sync(raise_errors=False)
        (fan_in,) = box.created(bind)
        assert fan_in.result == ["completed", "dead", "cancelled"]


def test_a_handler_cancels_its_batch() -> None:
    with sandbox() as box:
        with app.batch(then=bind) as batch:
            batch.create_sync(stop)
            batch.create_many_sync(write, [1, 2])
        box.run_all_sync()
        assert box.created(bind) == []
        assert [each.state for each in box.created(write)] == ["cancelled"] * 2
        assert batch.ref.status_sync().state == "cancelled"
