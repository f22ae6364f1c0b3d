"""How many jobs are claimed, and when none are claimed ahead."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.faulty import FaultyEngine
from trellis import ConfigurationError, PerKey, Retry, Service
from trellis.config import WorkerSettings, worker_settings
from trellis.core.durations import SECOND
from trellis.worker.active_job import JobEnvironment
from trellis.worker.attempt import HeldAttempts
from trellis.worker.executor import Executor
from trellis.worker.fetcher import BATCH, Planner
from trellis.worker.notes import NoteWriter
from trellis.worker.session import EngineTime


async def quick(number: int) -> None: ...
async def other(number: int) -> None: ...
async def third(number: int) -> None: ...


def planner(*types: tuple[Any, dict[str, Any]], slots: int = 10) -> Planner:
    service = Service("shop", "memory://")
    for handler, options in types:
        service.job(**options)(handler)
    notes = NoteWriter(FaultyEngine())
    executor = Executor(
        slots,
        attempts=HeldAttempts(),
        environment=JobEnvironment(notes),
        engine_time=EngineTime(0),
        settle=lambda *_: None,
    )
    return Planner(service.job_types, executor)


def show_quick(plan: Planner, name: str, seconds: float = 0.0001) -> None:
    for _ in range(10):
        plan.types["shop", name].took(seconds)


async def test_an_unknown_pace_claims_only_into_free_slots() -> None:
    claim = planner((quick, {})).plan_claim()
    assert claim.demands
    assert (claim.demands[0].limit, claim.limit) == (10, 10)


async def test_a_quick_type_is_claimed_ahead() -> None:
    plan = planner((quick, {}))
    show_quick(plan, "quick")
    claim = plan.plan_claim()
    assert claim.demands
    assert claim.limit == BATCH


async def test_no_more_is_claimed_ahead_than_a_tenth_of_a_seconds_work() -> None:
    plan = planner((quick, {}))
    show_quick(plan, "quick", 0.02)
    claim = plan.plan_claim()
    assert claim.demands
    assert claim.limit == 10 + 50


async def test_a_slow_type_is_not_claimed_ahead() -> None:
    plan = planner((quick, {}))
    show_quick(plan, "quick", 0.2)
    claim = plan.plan_claim()
    assert claim.demands
    assert claim.limit == 10


async def test_a_type_that_was_claimed_ahead_without_need_is_measured_again() -> None:
    plan = planner((quick, {}))
    show_quick(plan, "quick")
    plan.types["shop", "quick"].forget_pace()
    claim = plan.plan_claim()
    assert claim.demands
    assert claim.limit == 10
    show_quick(plan, "quick")
    claim = plan.plan_claim()
    assert claim.demands
    assert claim.limit == BATCH


@pytest.mark.parametrize(
    "options",
    [
        {"retry": Retry.never()},
        {"on_lost": "fail"},
        {"on_lost": "stale"},
        {"per_key": PerKey.in_turn("shop/{number}")},
        {"concurrency": 5},
    ],
)
async def test_types_that_would_lose_by_it_are_never_claimed_ahead(options: dict[str, Any]) -> None:
    plan = planner((quick, options))
    show_quick(plan, "quick")
    claim = plan.plan_claim()
    assert claim.demands
    assert claim.limit == 10


def occupy(plan: Planner, slots: int) -> None:
    busy: dict[Any, Any] = dict.fromkeys(range(slots))
    plan._executor._attempts.running = busy


async def test_beside_a_quick_type_others_are_claimed_only_into_free_slots() -> None:
    plan = planner((quick, {}), (other, {}), slots=4)
    show_quick(plan, "quick")
    occupy(plan, 1)
    claim = plan.plan_claim()
    assert claim.demands
    limits = {demand.types: demand.limit for demand in claim.demands}
    assert limits == {("other",): 3, ("quick",): BATCH}
    occupy(plan, 4)
    claim = plan.plan_claim()
    assert claim.demands
    assert [demand.types for demand in claim.demands] == [("quick",)]


async def test_going_ahead_pauses_so_that_others_get_their_chance_at_a_slot() -> None:
    plan = planner((quick, {}), (other, {}), slots=4)
    show_quick(plan, "quick")
    assert plan.plan_claim().demands
    occupy(plan, 4)
    plan._slot_was_free -= 1
    assert not plan.plan_claim().demands


async def test_with_fewer_free_slots_than_demands_nothing_is_claimed_ahead() -> None:
    plan = planner((quick, {}), (other, {"concurrency": 2}), (third, {}), slots=4)
    show_quick(plan, "quick")
    occupy(plan, 3)
    claim = plan.plan_claim()
    assert claim.demands
    assert (len(claim.demands), claim.limit) == (2, 1)


async def test_a_type_at_its_limit_is_not_asked_for() -> None:
    plan = planner((quick, {"concurrency": 2}), (other, {}))
    plan.types["shop", "quick"].busy = 2
    claim = plan.plan_claim()
    assert claim.demands
    assert [demand.types for demand in claim.demands] == [("other",)]


async def test_types_share_a_demand_that_declares_their_policies() -> None:
    plan = planner((quick, {"queue": "mail", "timeout": "5s"}), (other, {}), (third, {}))
    (demand,) = plan.plan_claim().demands
    assert demand.types == ("quick", "other", "third")
    assert demand.queues == ()
    assert [policy.timeout for policy in demand.policies] == [5 * SECOND, None, None]


async def test_a_worker_without_handlers_says_so() -> None:
    service = Service("shop", "memory://")
    service.declare("report", payload=int, result=int)
    with pytest.raises(ConfigurationError, match="no handler is declared"):
        async with service, service.worker():
            pass


def test_settings_come_from_the_environment_and_then_from_the_program() -> None:
    settings = worker_settings({"TRELLIS_LEASE": "6s", "TRELLIS_CONCURRENCY": "3"})
    assert (settings.lease, settings.heartbeat, settings.concurrency) == (6 * SECOND, 2 * SECOND, 3)
    assert settings.with_options(concurrency=7, grace="1s").in_words() == {
        "concurrency": "7",
        "lease": "6s",
        "heartbeat": "2s",
        "sweep": "2s",
        "grace": "1s",
        "poll": "1s",
        "processes": "1",
        "stall_limit": "1m",
        "max_jobs": "no limit",
        "max_memory": "no limit",
        "types": "all",
        "queues": "all",
        "name": "host and process",
        "idle": "no limit",
        "contract": "warn",
        "keep_audit": "365d",
    }


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TRELLIS_HEARTBEAT": "20s"}, "Renew at least three times per lease"),
        ({"TRELLIS_CONCURRENCY": "many"}, "TRELLIS_CONCURRENCY must be a whole number"),
        ({"TRELLIS_CONCURRENCY": "0"}, "concurrency must be at least 1"),
        ({"TRELLIS_POLL": "0s"}, "poll and sweep must be above zero"),
        ({"TRELLIS_LEASE": "long"}, "'long' is not a duration"),
    ],
)
def test_settings_that_cannot_work_are_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        worker_settings(environ)


def test_the_default_settings_are_the_tuned_ones() -> None:
    assert WorkerSettings().in_words() == {
        "concurrency": "10",
        "lease": "30s",
        "heartbeat": "10s",
        "sweep": "5s",
        "grace": "25s",
        "poll": "1s",
        "processes": "1",
        "stall_limit": "5m",
        "max_jobs": "no limit",
        "max_memory": "no limit",
        "types": "all",
        "queues": "all",
        "name": "host and process",
        "idle": "no limit",
        "contract": "warn",
        "keep_audit": "365d",
    }
