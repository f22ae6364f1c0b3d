"""Schedules in the hands of operators: read, changed, reset, run; each change is in the audit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from trellis import PerKey, Service
from trellis import schedules as control
from trellis.core.durations import to_datetime
from trellis.engines.audit import AuditEntry, AuditFilter
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import QueueSettings
from trellis.errors import (
    AmbiguousId,
    ConfigurationError,
    Draining,
    KeyUnresolved,
    PayloadInvalid,
    ScheduleNotFound,
)
from trellis.operations.operator import Operator
from trellis.testing.clock import ManualClock


class Login(BaseModel):
    user: str
    password: SecretStr = SecretStr("hidden-word")


app = Service("shop", "memory://")


@app.schedule("0 3 * * *", tz="Europe/Vienna")
@app.job
async def nightly() -> None: ...


@app.job
async def sync(login: Login) -> None: ...


@app.job(per_key=PerKey("u/{user}"))
async def keyed(login: Login) -> None: ...


@app.job(fair="{user}")
async def shared(login: Login) -> None: ...


app.schedule(shared, every="1h", payload=Login(user="ada"))
app.schedule(sync, every="15m", payload=Login(user="ada"), overlap="skip")
app.schedule(keyed, every="1h", payload=Login(user="ada"), paused=True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock) -> MemoryEngine:
    engine = MemoryEngine(clock)
    await control.declare_schedules(engine, "shop", app.schedules, lambda _: True)
    return engine


@pytest.fixture
def jobs(engine: MemoryEngine) -> Operator:
    return Operator(engine, actor="ann")


async def audit(engine: MemoryEngine) -> list[AuditEntry]:
    return await engine.audit(AuditFilter(action="schedule"))


async def test_schedules_are_listed_with_their_next_runs(
    jobs: Operator, clock: ManualClock
) -> None:
    found = {each.name: each for each in await jobs.schedules.find()}
    assert list(found) == ["keyed", "nightly", "shared", "sync"]
    now = to_datetime(clock.now())
    runs = found["nightly"].next_runs
    assert len(runs) == 5
    assert runs[0] > now
    assert {f"{each.astimezone(UTC):%M}" for each in runs} == {"00"}
    assert (found["keyed"].state, found["keyed"].next_runs) == ("paused", ())
    assert found["sync"].payload == {"user": "ada", "password": "**********"}
    assert await jobs.schedules.find(service="other") == []


async def test_a_change_holds_against_a_new_declaration_until_it_is_reset(
    jobs: Operator, engine: MemoryEngine
) -> None:
    changed = await jobs.schedules.change("nightly", cron="30 4 * * *", tz="UTC", reason="later")
    assert (changed.when, changed.tz) == ("30 4 * * *", "UTC")
    assert changed.declared == {"when": "0 3 * * *", "tz": "Europe/Vienna"}
    await control.declare_schedules(engine, "shop", app.schedules, lambda _: True)
    assert await jobs.schedules.get("nightly") == changed
    after = await jobs.schedules.reset("shop/nightly")
    assert (after.when, after.tz, after.declared) == ("0 3 * * *", "Europe/Vienna", {})
    reset, changed_entry = await audit(engine)
    assert (changed_entry.change.action, changed_entry.by) == ("schedule.set", ("ann", "later"))
    assert changed_entry.change.before == {"when": "0 3 * * *", "tz": "Europe/Vienna"}
    assert changed_entry.change.after == {"when": "30 4 * * *", "tz": "UTC"}
    assert reset.change.action == "schedule.reset"


async def test_a_paused_schedule_creates_nothing_until_it_is_resumed(
    jobs: Operator, engine: MemoryEngine, clock: ManualClock
) -> None:
    assert (await jobs.schedules.pause("sync", reason="holiday")).state == "paused"
    clock.advance("15m")
    await control.fire_due(engine)
    assert (await jobs.schedules.resume("sync")).state == "active"
    clock.advance("15m")
    await control.fire_due(engine)
    slots = await jobs.schedules.slots("sync")
    assert [(each.outcome, each.why) for each in slots] == [
        ("created", None),
        ("skipped", "paused"),
    ]
    assert [each.change.action for each in await audit(engine)] == [
        "schedule.resume",
        "schedule.pause",
    ]
    view = await jobs.get(slots[0].job_id or "")
    assert (view.schedule, view.slot) == ("sync", slots[0].slot)


async def test_slots_in_a_window_are_skipped(
    jobs: Operator, engine: MemoryEngine, clock: ManualClock
) -> None:
    now = to_datetime(clock.now())
    runs = (await jobs.schedules.get("sync")).next_runs
    view = await jobs.schedules.add_window(
        "sync", now, runs[1] + timedelta(seconds=1), reason="move"
    )
    assert view.next_runs[:3] == runs[2:]
    clock.advance("15m")
    await control.fire_due(engine)
    assert [each.why for each in await jobs.schedules.slots("sync")] == ["window"]
    with pytest.raises(ConfigurationError, match="has no window"):
        await jobs.schedules.remove_window("sync", runs[0])
    assert (await jobs.schedules.remove_window("sync", now)).windows == ()
    with pytest.raises(ConfigurationError, match="ends before it starts"):
        await jobs.schedules.add_window("sync", now, now)
    with pytest.raises(ConfigurationError, match="time zone"):
        await jobs.schedules.add_window("sync", datetime(2030, 1, 1), now)  # noqa: DTZ001
    assert [each.change.action for each in await audit(engine)] == ["schedule.window"] * 2


async def test_a_schedule_runs_now(
    jobs: Operator, engine: MemoryEngine, clock: ManualClock
) -> None:
    created = await jobs.schedules.run("sync", reason="try it")
    view = await jobs.get(created.job_id)
    assert (created.is_new, view.schedule, view.slot) == (True, "sync", None)
    (entry,) = await audit(engine)
    assert (entry.change.after, entry.by.reason) == ({"job": created.job_id}, "try it")
    clock.advance("15m")
    await control.fire_due(engine)  # the job overlaps with the slot, as every job of the schedule
    assert [each.why for each in await jobs.schedules.slots("sync")] == ["overlap"]
    await engine.set_queue(QueueSettings("shop", "sync", draining=True))
    with pytest.raises(Draining):
        await jobs.schedules.run("sync")


async def test_secrets_are_masked_in_the_audit(jobs: Operator, engine: MemoryEngine) -> None:
    await jobs.schedules.change("sync", payload={"user": "ada", "password": "other-word"})
    (entry,) = await audit(engine)
    assert "word" not in repr(entry.change).replace("password", "")
    assert set(entry.change.after or {}) == {"payload"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({}, ConfigurationError, "Nothing to change"),
        ({"cron": "0 3 * * *", "every": "1h"}, ConfigurationError, "not both"),
        ({"cron": "0 99 * * *"}, ConfigurationError, "bad hour"),
        ({"every": "0s"}, ConfigurationError, "every"),
        ({"tz": "Mars"}, ConfigurationError, "no time zone"),
        ({"missed": "never"}, ConfigurationError, "missed"),
        ({"zone": "UTC"}, ConfigurationError, "no option 'zone'"),
        ({"payload": {"name": "ada"}}, PayloadInvalid, "shop/sync"),
        ({"payload": float("nan")}, PayloadInvalid, "JSON"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_and_stores_nothing(
    jobs: Operator,
    engine: MemoryEngine,
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    before = await engine.schedules()
    with pytest.raises(error, match=message):
        await jobs.schedules.change("sync", types=app.job_types, **changes)
    assert await engine.schedules() == before
    assert await audit(engine) == []


@pytest.mark.parametrize("name", ["keyed", "shared"])
async def test_a_payload_without_the_field_of_its_key_or_tenant_is_refused(
    jobs: Operator, engine: MemoryEngine, name: str
) -> None:
    before = await engine.schedules()
    with pytest.raises(KeyUnresolved, match=f"shop/{name}: .* Nothing was stored"):
        await jobs.schedules.change(name, payload={"name": "ada"})
    assert await engine.schedules() == before


async def test_a_key_and_a_queue_of_the_schedule_exclude_each_other(jobs: Operator) -> None:
    with pytest.raises(ConfigurationError, match="already wait for their key"):
        await jobs.schedules.change("keyed", overlap="queue")


async def test_names_that_are_unknown_or_ambiguous_are_refused(
    jobs: Operator, engine: MemoryEngine
) -> None:
    with pytest.raises(ScheduleNotFound, match="trellis schedules"):
        await jobs.schedules.get("nowhere")
    other = [each._replace(service="other") for each in app.schedules]
    await control.declare_schedules(engine, "other", other, lambda _: True)
    with pytest.raises(AmbiguousId, match="other/sync, shop/sync"):
        await jobs.schedules.pause("sync")
    assert (await jobs.schedules.pause("other/sync")).service == "other"


async def test_a_clock_that_was_set_back_is_seen_and_reset_starts_again(
    jobs: Operator, clock: ManualClock, engine: MemoryEngine
) -> None:
    clock.advance("90d")
    await control.fire_due(engine)
    clock.step_wall("90d", back=True)
    await control.fire_due(engine)
    view = await jobs.schedules.get("sync")
    assert view.ahead_until is not None
    assert view.ahead_until > to_datetime(clock.now()) + timedelta(days=89)
    after = await jobs.schedules.reset("sync")
    assert after.ahead_until is None
    assert after.next_runs[0] <= to_datetime(clock.now()) + timedelta(minutes=15)
