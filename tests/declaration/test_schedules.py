"""Schedules as a service declares them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from trellis import Fair, Outcome, PerKey, Service
from trellis.core.durations import micros
from trellis.core.job import JobId, Relations
from trellis.core.schedules import Plan, Schedule, job_of
from trellis.errors import ConfigurationError, PayloadInvalid


class Order(BaseModel):
    number: int


def a_service() -> Service:
    return Service("shop", "memory://")


def test_a_schedule_stands_above_its_job() -> None:
    app = a_service()

    @app.schedule("0 3 * * *", tz="Europe/Vienna", jitter="30s", missed="all", overlap="skip")
    @app.job(timeout="9s", queue="night", deadline="1h")
    async def clean() -> None: ...

    (declared,) = app.schedules
    assert (declared.service, declared.name) == ("shop", "clean")
    assert declared.plan == Plan("0 3 * * *", "Europe/Vienna", micros("30s"), "all", "skip")
    template = declared.template
    assert (template.type, template.queue, template.deadline) == ("clean", "night", micros("1h"))
    assert template.policy.timeout == micros("9s")
    assert clean.name == "clean"


def test_a_job_may_have_several_schedules_with_payloads() -> None:
    app = a_service()

    @app.job
    async def sync(order: Order) -> None: ...

    assert app.schedule(sync, every="15m", payload=Order(number=7)) is sync
    app.schedule(sync, cron="@daily", payload=Order(number=8), name="daily", paused=True)
    app.schedule(sync, every=timedelta(hours=2), payload=Order(number=9), name="slow")
    assert [(each.name, each.plan.when, each.plan.payload) for each in app.schedules] == [
        ("sync", "@every 15m", '{"number":7}'),
        ("daily", "@daily", '{"number":8}'),
        ("slow", "@every 2h", '{"number":9}'),
    ]
    assert app.schedules[1].plan.paused


def test_hooks_that_are_declared_after_a_schedule_hold_for_its_jobs() -> None:
    app = a_service()

    @app.schedule(every="1h")
    @app.job
    async def sync(limit: int = 5) -> None: ...

    @sync.on_finished(name="report")
    async def report(outcome: Outcome) -> None: ...

    (declared,) = app.schedules
    assert [each.type for each in declared.template.policy.hooks] == ["report"]


def test_the_default_of_the_handler_is_the_payload() -> None:
    app = a_service()

    @app.schedule(every="1h")
    @app.job
    async def sync(limit: int = 5) -> None: ...

    assert app.schedules[0].plan.payload == "5"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a cron expression or an interval"),
        ({"cron": "@daily", "every": "1h"}, "either a cron expression or an interval"),
        ({"every": "0s"}, "every"),
        ({"every": -5}, "every"),
        ({"every": "often"}, "is not a duration"),
        ({"cron": "0 99 * * *"}, "bad hour"),
        ({"cron": "@daily", "tz": "Vienna"}, "There is no time zone 'Vienna'"),
        ({"cron": "@daily", "tz": 7}, "tz"),
        ({"cron": "@daily", "missed": "never"}, "missed"),
        ({"cron": "@daily", "overlap": "never"}, "overlap"),
        ({"cron": "@daily", "jitter": "2d"}, "jitter"),
        ({"cron": "@daily", "name": "a b"}, "cannot be a schedule name"),
        ({"cron": "@daily", "zone": "UTC"}, "A schedule has no option 'zone'"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(options: dict[str, Any], message: str) -> None:
    app = a_service()

    @app.job
    async def clean() -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        app.schedule(clean, **options)
    assert app.schedules == ()


def test_a_payload_that_does_not_fit_is_refused() -> None:
    app = a_service()

    @app.job
    async def sync(order: Order) -> None: ...

    with pytest.raises(PayloadInvalid, match="needs one"):
        app.schedule(sync, every="1h")
    with pytest.raises(PayloadInvalid, match="The schedule of shop/sync"):
        app.schedule(sync, every="1h", payload="seven")


def test_jobs_with_a_key_cannot_also_wait_for_their_schedule() -> None:
    app = a_service()

    @app.job(per_key=PerKey("order/{number}"))
    async def sync(order: Order) -> None: ...

    with pytest.raises(ConfigurationError, match="already wait for their key"):
        app.schedule(sync, every="1h", payload=Order(number=1), overlap="queue")
    app.schedule(sync, every="1h", payload=Order(number=1), overlap="skip")


def test_a_name_is_used_once_and_a_job_belongs_to_its_service() -> None:
    app, other = a_service(), Service("other", "memory://")

    @app.schedule("@daily")
    @app.job
    async def clean() -> None: ...

    with pytest.raises(ConfigurationError, match="already has a schedule 'clean'"):
        app.schedule(clean, every="1h")
    with pytest.raises(ConfigurationError, match="belongs to another service"):
        other.schedule(clean, every="1h")


def test_a_schedule_below_its_job_is_refused() -> None:
    app = a_service()
    wrong: Any = lambda: None  # noqa: E731
    with pytest.raises(ConfigurationError, match=r"above @service\.job"):
        app.schedule("@daily")(wrong)


def test_a_job_option_that_means_a_schedule_gets_advice() -> None:
    options: Any = {"cron": "0 3 * * *"}
    with pytest.raises(ConfigurationError, match=r"@service\.schedule"):
        a_service().job(**options)(lambda: None)


def test_the_jobs_of_a_schedule_use_the_share_of_their_tenant() -> None:
    app = a_service()

    @app.job(fair=Fair("{number}", weights={"7": 3}))
    async def sync(order: Order) -> None: ...

    app.schedule(sync, every="15m", payload=Order(number=7))
    (declared,) = app.schedules
    schedule = Schedule("shop", declared.name, declared.plan, declared.template)
    made = job_of(schedule, JobId("one"), 5, 0)
    assert made.relations == Relations(schedule="sync", slot=5, tenant="7", weight=3)
