"""Schedules through the HTTP engine: the server decides each step, whatever the caller sends."""

from __future__ import annotations

import pytest

from tests.harness.shop import Shop
from trellis.core.durations import micros
from trellis.core.job import JobId
from trellis.core.policy import Policy
from trellis.core.schedules import (
    Declared,
    Plan,
    Schedule,
    SlotDecision,
    Step,
    Template,
    Window,
    declare,
)
from trellis.engines.audit import By, Change
from trellis.engines.http.protocol import VERBS, wanted
from trellis.engines.port import Engine
from trellis.errors import AccessDenied
from trellis.operations.operator import Operator
from trellis.schedules import declare_schedules, find_schedule, fire_due
from trellis.testing.builders import a_job

DAILY = Declared("shop", "daily", Plan("@every 1d"), Template("invoice", "default", Policy()))


async def a_schedule(engine: Engine, *, due: bool = False) -> Schedule:
    """Store a schedule; with `due`, its next slot has come."""
    now = await engine.now()
    new = declare(DAILY, now)
    await engine.add_schedules([new._replace(next_slot=now - micros("1s")) if due else new])
    return await find_schedule(engine, "shop", "daily")


async def test_slots_and_jobs_that_a_caller_makes_up_are_not_stored(shop: Shop) -> None:
    stored = await a_schedule(shop.engine)
    worker = await shop.program("worker:shop")
    slot = stored.next_slot
    assert slot is not None
    forged = Step(
        stored._replace(next_slot=slot + 1, live=(JobId("x"),)),
        (SlotDecision(slot, "created"),),
        ((slot, a_job(payload='"forged"')),),
    )
    assert await worker.advance_schedule(forged) == []
    assert await find_schedule(shop.engine, "shop", "daily") == stored
    assert await shop.engine.slots("shop", "daily") == []
    assert (await shop.operator.count("state")) == {}


async def test_due_slots_are_decided_by_the_server_once(shop: Shop) -> None:
    await a_schedule(shop.engine, due=True)
    leader = await shop.program("admin.read", "admin.mutate")
    await fire_due(leader)
    await fire_due(leader)
    (record,) = await shop.engine.slots("shop", "daily")
    assert record.decision.outcome == "created"
    assert await shop.operator.count("state") == {"pending": 1}


async def test_a_step_for_an_older_version_stores_nothing(shop: Shop) -> None:
    stored = await a_schedule(shop.engine, due=True)
    worker = await shop.program("worker:shop")
    assert await worker.advance_schedule(Step(stored._replace(version=stored.version + 1))) is None
    assert await worker.advance_schedule(Step(stored._replace(name="unknown"))) is None
    assert await shop.engine.slots("shop", "daily") == []


async def test_a_worker_changes_what_code_declares_and_not_what_operators_changed(
    shop: Shop,
) -> None:
    await a_schedule(shop.engine)
    worker = await shop.program("worker:shop")
    hourly = DAILY._replace(plan=Plan("@every 1h"))
    await declare_schedules(worker, "shop", [hourly], lambda _: True)
    stored = await find_schedule(shop.engine, "shop", "daily")
    assert stored.plan.when == "@every 1h"
    for changed in (
        stored._replace(changes={"paused": True}),
        stored._replace(windows=(Window(1, 2),)),
    ):
        with pytest.raises(AccessDenied, match=r"admin\.mutate"):
            await worker.advance_schedule(Step(changed))
    with pytest.raises(AccessDenied, match=r"admin\.mutate"):
        await worker.advance_schedule(Step(stored), Change("schedule.set", "shop/daily"))
    await declare_schedules(worker, "shop", [], lambda _: True)
    assert (await find_schedule(shop.engine, "shop", "daily")).retired_at is not None


async def test_a_new_schedule_is_due_after_the_servers_time_whatever_the_caller_says(
    shop: Shop,
) -> None:
    worker = await shop.program("worker:shop")
    forged = declare(DAILY, 0)._replace(next_slot=1, version=7, live=(JobId("x"),))
    assert await worker.add_schedules([forged]) == [True]
    stored = await find_schedule(shop.engine, "shop", "daily")
    assert stored.next_slot is not None
    assert stored.next_slot > await shop.engine.now()
    assert stored.live == ()


async def test_the_audit_of_an_edit_has_the_values_that_the_server_saw(shop: Shop) -> None:
    stored = await a_schedule(shop.engine)
    operator = await shop.program("admin.mutate")
    lie = Change("schedule.pause", "other/thing", {"paused": "yes"}, {"paused": "no"})
    await operator.advance_schedule(
        Step(stored._replace(changes={"paused": True})), lie, By("maintenance")
    )
    (entry,) = await shop.operator.audit(action="schedule")
    assert (entry.actor, entry.target) == ("token:test", "shop/daily")
    assert (entry.before, entry.after) == ({"paused": False}, {"paused": True})


@pytest.mark.parametrize("changes", [{"paused": "yes"}, {"when": 7}, {"unknown": True}])
async def test_a_value_that_no_plan_has_is_refused(
    shop: Shop, changes: dict[str, str | int | bool]
) -> None:
    stored = await a_schedule(shop.engine)
    body = VERBS["advance_schedule"].write(
        wanted(Step(stored._replace(changes=changes))),
        "schedule.set",
    )
    answer = await shop.call("advance_schedule", body, await shop.token("admin.mutate"))
    assert (answer.status_code, "Nothing was stored" in answer.text) == (422, True)
    assert await find_schedule(shop.engine, "shop", "daily") == stored


async def test_a_schedule_that_an_operator_runs_makes_the_job_that_it_declares(shop: Shop) -> None:
    await a_schedule(shop.engine)
    operator = Operator(await shop.program("admin.read", "admin.mutate"))
    made = await operator.schedules.run("shop/daily")
    job = await shop.operator.get(made.job_id)
    assert (job.type, job.schedule, job.payload) == ("invoice", "daily", None)
