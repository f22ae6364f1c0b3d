"""Declaring job types: what is understood, and what is refused with which words."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable
from copy import copy
from operator import attrgetter
from typing import Any

import pytest

from trellis import ActiveJob, ConfigurationError, PerKey, Retry, Service
from trellis.core.durations import micros
from trellis.errors import InvalidName, UnknownJobType


def app() -> Service:
    return Service("shop", "memory://")


async def takes_payload(order: int) -> str:
    return str(order)


async def takes_job(job: ActiveJob[int]) -> str:
    return str(job.payload)


async def takes_nothing() -> None: ...
def plain(order: int) -> None: ...
async def with_default(order: int, *, retries: int = 3) -> None: ...


@pytest.mark.parametrize(
    ("handler", "takes", "is_async"),
    [
        (takes_payload, "payload", True),
        (takes_job, "job", True),
        (takes_nothing, "nothing", True),
        (plain, "payload", False),
        (with_default, "payload", True),
        (functools.partial(with_default, retries=2), "payload", True),
    ],
)
def test_a_signature_says_how_the_handler_is_called(
    handler: Callable[..., Any], takes: str, is_async: bool
) -> None:
    job = app().job(name="it")(handler)
    declared = job.job_type.handler
    assert declared is not None
    assert (declared.takes, declared.is_async) == (takes, is_async)


async def two_payloads(order: int, customer: str) -> None: ...
async def unannotated(order) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001
async def any_number(*orders: int) -> None: ...
async def any_keywords(**orders: int) -> None: ...
async def needs_keyword(order: int, *, color: str) -> None: ...
async def bare_job(job: ActiveJob) -> None: ...  # type: ignore[type-arg]
async def unknown_name(order: Misspelt) -> None: ...  # type: ignore[name-defined] # noqa: F821
async def yields(order: int) -> AsyncIterator[int]:
    yield order


async def takes_a_socket(order: Callable[[], int]) -> object: ...


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (two_payloads, "takes 2 arguments (order, customer), but a job has one payload"),
        (unannotated, "has no annotation for its payload 'order'. Annotate it"),
        (any_number, "takes *orders: int, but a job has exactly one payload".replace(": int", "")),
        (any_keywords, "but a job has exactly one payload"),
        (needs_keyword, "needs the keyword 'color', which workers do not pass"),
        (bare_job, "takes an ActiveJob without a payload type"),
        (unknown_name, "use 'Misspelt', which is not defined"),
        (yields, "yields, but a job has one result"),
        (3, "is not a function"),
    ],
)
def test_a_handler_that_cannot_work_is_refused_when_it_is_declared(
    handler: Callable[..., Any], words: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        app().job(handler)
    assert words.split(",", maxsplit=1)[0] in str(refusal.value)


def test_a_second_type_of_the_same_name_is_refused() -> None:
    shop = app()
    shop.job(takes_payload)
    with pytest.raises(ConfigurationError, match="already has a job type 'takes_payload'"):
        shop.job(takes_payload)


def test_a_second_handler_for_a_declared_type_is_refused() -> None:
    report = app().declare("report", payload=int, result=str)
    report.handler(takes_payload)
    with pytest.raises(ConfigurationError, match="already has a handler"):
        report.handler(takes_job)


def test_a_handler_for_another_payload_than_declared_is_refused() -> None:
    report = app().declare("report", payload=str, result=str)
    with pytest.raises(ConfigurationError, match="was declared with <class 'str'>"):
        report.handler(takes_payload)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["workers", "trellis", "", "9lives", "has space", "dotted.name"])
def test_a_service_name_that_some_engine_could_not_carry_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        Service(name)


@pytest.mark.parametrize("option", [{"name": "a.b"}, {"queue": "a b"}])
def test_a_type_or_queue_name_that_some_engine_could_not_carry_is_refused(
    option: dict[str, str],
) -> None:
    with pytest.raises(InvalidName):
        app().job(**option)(takes_payload)  # type: ignore[call-overload]


def test_a_misspelt_policy_is_refused_and_the_right_one_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'timeot'\. Did you mean timeout\?"):
        app().job(timeot="10m")(takes_payload)  # type: ignore[call-overload]


def test_a_concurrency_of_none_at_all_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="would never run"):
        app().job(concurrency=0)(takes_payload)


def test_policies_are_frozen_into_the_type() -> None:
    policy = (
        app()
        .job(
            retry=Retry.never(),
            timeout="10m",
            activity_timeout=5,
            on_shutdown="fail",
            dead_letters=False,
            max_crashes=2,
            retention={"completed": "1h"},
            cancel_grace="3s",
        )(takes_payload)
        .job_type.policy
    )
    assert policy.retry.attempts == 1
    assert (policy.timeout, policy.activity_timeout) == (micros("10m"), micros("5s"))
    assert (policy.on_shutdown, policy.dead_letters, policy.max_crashes) == ("fail", False, 2)
    assert (policy.retention.completed, policy.retention.failed) == (micros("1h"), micros("30d"))
    assert policy.cancel_grace == micros("3s")


def test_an_unknown_state_in_retention_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="retention has no done"):
        app().job(retention={"done": "1h"})(takes_payload)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("per_key", "options", "expected"),
    [
        (PerKey("order/{number}"), {}, "retry"),
        (PerKey.in_turn("order/{number}", strict=True), {}, "retry"),
        (PerKey("order/{number}"), {"on_lost": "stale"}, "stale"),
        (PerKey.in_turn("order/{number}"), {"on_lost": "block"}, "block"),
    ],
)
def test_a_lost_job_with_a_key_is_retried_unless_its_type_says_otherwise(
    per_key: PerKey, options: dict[str, Any], expected: str
) -> None:
    job = app().job(per_key=per_key, **options)(takes_payload)
    assert job.job_type.policy.on_lost == expected


@pytest.mark.parametrize("template", ["", "order/{", "order/{a b}", "{}"])
def test_a_bad_key_template_is_refused_when_it_is_written(template: str) -> None:
    with pytest.raises(ConfigurationError):
        PerKey(template)


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        ({}, True),
        ({"retry": Retry.never()}, False),
        ({"on_lost": "fail"}, False),
        ({"on_lost": "stale"}, False),
        ({"per_key": PerKey.in_turn("order/{number}")}, False),
        ({"concurrency": 3}, False),
    ],
)
def test_only_types_that_lose_nothing_by_it_may_be_claimed_ahead(
    options: dict[str, Any], ahead: bool
) -> None:
    job = app().job(**options)(takes_payload)
    assert job.job_type.may_be_claimed_ahead is ahead


def test_a_type_is_found_by_name_and_an_unknown_one_is_named() -> None:
    shop = app()
    shop.job(takes_payload)
    assert shop.find("takes_payload").name == "takes_payload"
    with pytest.raises(UnknownJobType, match="has no job type 'refund', but: takes_payload"):
        shop.find("refund")


async def test_calling_a_job_says_what_was_meant() -> None:
    job = app().job(takes_payload)
    with pytest.raises(TypeError, match=r"Use await takes_payload.create\(...\)"):
        job(3)  # type: ignore[operator]


async def double(job: ActiveJob[int]) -> int:
    job.progress(1, 2)
    job.log.info("doubling")
    job.items.complete("it")
    return job.payload * 2


async def gives_seven() -> int:
    return 7


def triple(number: int) -> int:
    return number * 3


async def test_run_inline_runs_the_handler_as_a_function() -> None:
    shop = app()
    assert await shop.job(double).run_inline(4) == 8
    assert await shop.job(triple).run_inline(4) == 12
    assert await shop.job(gives_seven).run_inline() == 7


def thread_of(job: ActiveJob[int]) -> int:
    with job.lock("ledger", wait="1s"):
        return threading.get_ident()


async def test_a_plain_handler_run_inline_may_block_in_a_thread() -> None:
    assert await app().job(thread_of).run_inline(1) != threading.get_ident()


def test_a_plain_handler_run_inline_without_a_loop_runs_in_the_callers_thread() -> None:
    assert app().job(thread_of).run_inline_sync(1) == threading.get_ident()
    assert app().job(double).run_inline_sync(4) == 8


def creates_another(number: int) -> str:
    shop = Service("shop", "memory://")
    return shop.declare("other", payload=int, result=int).create_sync(number).status_sync().state


async def test_a_plain_handler_run_inline_may_call_the_twins_for_plain_code() -> None:
    assert await app().job(creates_another).run_inline(1) == "pending"


def test_a_plain_handler_run_inline_without_a_loop_may_call_them_too() -> None:
    assert app().job(creates_another).run_inline_sync(1) == "pending"


def runs_out(number: int) -> int:
    return next(iter([number][1:]))


async def test_a_plain_handler_run_inline_may_raise_anything() -> None:
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await app().job(runs_out).run_inline(1)


async def test_run_inline_needs_a_handler() -> None:
    with pytest.raises(ConfigurationError, match="has no handler in this program"):
        await app().declare("report", payload=int, result=int).run_inline(1)


@pytest.mark.parametrize("name", ["delay", "apply_async", "defer", "send", "enqueue"])
def test_the_word_of_another_library_is_answered_with_ours(name: str) -> None:
    greet = Service("shop", "memory://").declare("greet", payload=str, result=str)
    with pytest.raises(AttributeError, match=rf"no {name}\(\)\. Write await greet\.create"):
        getattr(greet, name)
    assert not hasattr(greet, name)


def test_any_other_word_is_an_ordinary_missing_attribute() -> None:
    greet = Service("shop", "memory://").declare("greet", payload=str, result=str)
    with pytest.raises(AttributeError, match="object has no attribute 'colour'"):
        attrgetter("colour")(greet)
    assert copy(greet).name == "greet"


def test_a_worker_opened_without_async_says_what_to_write() -> None:
    worker: Any = Service("shop", "memory://").worker()
    with pytest.raises(ConfigurationError, match=r"write async with app\.worker"), worker:
        pass
