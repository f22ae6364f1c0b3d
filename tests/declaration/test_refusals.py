"""What cannot be declared or created is refused with what was given and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trellis import ConfigurationError, Job, PerKey, Service
from trellis.core.durations import micros
from trellis.declaration.handler_exceptions import RetryIn, Snooze

CENTURY = timedelta(days=36525)


async def handler(number: int) -> None: ...


def declare(**options: object) -> Job[int, None]:
    shop: Any = Service("shop", "memory://")
    job: Job[int, None] = shop.job(**options)(handler)
    return job


def words_of(refusal: pytest.ExceptionInfo[ConfigurationError]) -> str:
    text = str(refusal.value)
    assert text.endswith((".", "?"))
    assert len(text) < 300
    return text


@pytest.mark.parametrize(
    ("options", "given", "instead"),
    [
        ({"retry": 3}, "retry=3", "retry=Retry(attempts=3)"),
        ({"retry": 0}, "retry=0", "retry=Retry.never()"),
        ({"retry": None}, "retry=None", "retry=Retry.never()"),
        ({"per_key": "u/{id}"}, "per_key='u/{id}'", "per_key=PerKey.in_turn('u/{id}')"),
        ({"per_key": 7}, "per_key=7", "PerKey.in_turn('user/{user.id}')"),
        ({"concurrency": "8"}, "concurrency='8'", "concurrency=1"),
        ({"concurrency": True}, "concurrency=True", "a whole number"),
        ({"concurrency": 0}, "concurrency=0", "Use at least 1"),
        ({"concurrency": -2}, "concurrency=-2", "Use at least 1"),
        ({"timeout": [1]}, "timeout=[1]", "timeout='30s'"),
        ({"timeout": 0}, "timeout=0", "a duration above zero"),
        ({"timeout": "0s"}, "timeout='0s'", "a duration above zero"),
        ({"timeout": True}, "timeout=True", "timeout='30s'"),
        ({"timeout": "long"}, "timeout: 'long'", "Write it like '30s'"),
        ({"timeout": -1}, "timeout", "cannot be negative"),
        ({"timeout": CENTURY * 2}, "timeout=", "longer than 100 years"),
        ({"timeout": "9" * 400 + "d"}, "timeout=", "longer than 100 years"),
        ({"timeout": float("nan")}, "timeout: ", "must be finite"),
        ({"activity_timeout": 0}, "activity_timeout=0", "a duration above zero"),
        ({"cancel_grace": None}, "cancel_grace=None", "cancel_grace='30s'"),
        ({"deadline": "0s"}, "deadline='0s'", "a duration above zero"),
        ({"retention": [1]}, "retention=[1]", "retention='30s'"),
        ({"retention": {"dead": "200y"}}, "retention of dead: '200y'", "Write it like '30s'"),
        ({"retention": {7: "1d"}}, "has no 7", "completed, failed, dead, other"),
        ({"on_lost": "again"}, "on_lost='again'", "'retry', 'fail', 'stale', 'block'"),
        ({"on_shutdown": "wait"}, "on_shutdown='wait'", "'requeue', 'fail'"),
        ({"dead_letters": "no"}, "dead_letters='no'", "dead_letters=False"),
        ({"max_crashes": 0}, "max_crashes=0", "at least 1"),
        ({"name": 7}, "name=7", "name='greet'"),
        ({"queue": 7}, "queue=7", "queue='letters'"),
        (
            {"cron": "0 3 * * *"},
            "has no option 'cron'",
            "Write @service.schedule",
        ),
    ],
)
def test_a_policy_that_cannot_be_is_refused_when_it_is_declared(
    options: dict[str, Any], given: str, instead: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        declare(**options)
    text = words_of(refusal)
    assert given in text
    assert instead in text


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"max_retries": 3}, "Write retry=Retry(attempts=3)."),
        ({"retries": 3}, "Write retry=Retry(attempts=3)."),
        ({"autoretry_for": (OSError,)}, "Write retry=Retry(on=(ConnectionError,))."),
        ({"time_limit": 60}, "Write timeout='1m'."),
        ({"expires": 60}, "Write deadline='1h'."),
        ({"countdown": 3}, "Write create(payload, delay='10m')."),
        ({"payload": int}, "has no option 'payload'"),
        ({"timeot": 3}, "Did you mean timeout?"),
        ({"colour": 3}, "Its options are activity_timeout, around"),
    ],
)
def test_a_keyword_of_another_system_is_answered_with_ours(
    options: dict[str, Any], instead: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        declare(**options)
    assert instead in str(refusal.value)


def test_none_for_concurrency_and_queue_means_the_usual() -> None:
    job_type = declare(concurrency=None, queue=None, timeout=None, per_key=None).job_type
    assert (job_type.concurrency, job_type.queue) == (None, "handler")
    assert (job_type.policy.timeout, job_type.policy.key) == (None, None)


def test_a_hundred_years_are_not_too_long() -> None:
    assert declare(timeout=CENTURY).job_type.policy.timeout == micros(CENTURY)


@pytest.mark.parametrize(
    ("options", "given", "instead"),
    [
        ({"tags": ["a"]}, "tags=['a']", "tags={'customer': 'ada'}"),
        ({"tags": {"a": 1}}, "not 'a': 1", "tags={'customer': 'ada'}"),
        ({"at": "2030-01-01"}, "at='2030-01-01'", "at=datetime(2030, 1, 1, tzinfo=UTC)"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone", "add a tzinfo"),  # noqa: DTZ001 - on purpose
        ({"priority": "high"}, "priority='high'", "priority=1"),
        ({"priority": 1.5}, "priority=1.5", "priority=1"),
        ({"priority": 9}, "Priority 9", "Use -4 (last) to 4 (first)"),
        ({"dedupe": 7}, "dedupe=7", "dedupe='order-7'"),
        ({"dedupe_while": "pending"}, "there is no key", "Add dedupe='order-7'"),
        ({"dedupe_for": "1h"}, "there is no key", "Add dedupe='order-7'"),
        ({"dedupe": "a", "dedupe_while": "new"}, "dedupe_while='new'", "'pending', 'unfinished'"),
        ({"dedupe": "a", "dedupe_for": "0s"}, "dedupe_for='0s'", "a duration above zero"),
        ({"idempotency_key": 7}, "idempotency_key=7", "idempotency_key='call-1'"),
        ({"expect": b"x"}, "expect=b'x'", "expect=trellis.fingerprint(config)"),
        ({"expect": "v1"}, "expect='v1'", "expect=trellis.fingerprint(config)"),
        ({"delay": [1]}, "delay=[1]", "delay='30s'"),
        ({"delay": 1e300}, "delay=1e+300", "longer than 100 years"),
        ({"delay": "36526d"}, "delay='36526d'", "longer than 100 years"),
        ({"deadline": "soon"}, "deadline: 'soon'", "Write it like '30s'"),
        ({"deadline": CENTURY * 2}, "deadline=", "longer than 100 years"),
        ({"delai": "1m"}, "has no option 'delai'", "Did you mean delay?"),
        ({"countdown": 3}, "has no option 'countdown'", "Write delay='10m'."),
        ({"max_retries": 3}, "has no option 'max_retries'", "Write attempts=3."),
        ({"expires": 60}, "has no option 'expires'", "Write deadline='1h'."),
        ({"retry_backoff": True}, "has no option", "@service.job(retry=Retry.exponential('5s'))."),
    ],
)
async def test_an_option_that_cannot_be_is_refused_before_anything_is_sent(
    options: dict[str, Any], given: str, instead: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        await declare().create(1, **options)
    text = words_of(refusal)
    assert given in text
    assert instead in text


@pytest.mark.parametrize("name", ["number", "payload", "date"])
async def test_a_payload_given_by_name_is_told_where_it_belongs(name: str) -> None:
    job: Any = declare()
    with pytest.raises(ConfigurationError) as refusal:
        await job.create(**{name: 1})
    assert f"has no option {name!r}. The payload comes first and without a name" in str(
        refusal.value
    )


async def test_a_job_without_payload_is_not_told_of_one() -> None:
    job = Service("shop", "memory://").declare("tick", result=int)
    with pytest.raises(ConfigurationError, match=r"'delai'\. Did you mean delay\?"):
        await job.create(delai="1m")  # type: ignore[call-overload]


async def test_a_delay_of_nothing_starts_at_once() -> None:
    async with Service("shop", "memory://") as shop:
        job = shop.declare("tick", result=int)
        assert (await (await job.create(delay=0)).status()).state == "pending"


@pytest.mark.parametrize("verdict", [RetryIn, Snooze])
def test_a_wait_that_a_handler_asks_for_is_checked_too(verdict: Callable[..., Any]) -> None:
    assert verdict("5m").delay == micros("5m")
    with pytest.raises(ConfigurationError, match="longer than 100 years"):
        verdict(timedelta.max)
    with pytest.raises(ConfigurationError, match=r"delay=\[1\] is not a duration"):
        verdict([1])


def test_the_deadline_of_a_type_is_counted_from_creation_so_a_moment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not a duration"):
        declare(deadline=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("options", "given", "instead"),
    [
        ({"when_full": "block"}, "when_full='block'", "'reject', 'coalesce', 'replace-oldest'"),
        ({"hold": "forever"}, "hold='forever'", "'attempt', 'job'"),
        ({"active": 0}, "active=0", "at least 1"),
        ({"active": "1"}, "active='1'", "active=1"),
        ({"queued": -1}, "queued=-1", "at least 0"),
        ({"queued": "all"}, "queued='all'", "a whole number"),
        ({"template": 7}, "template=7", "template='user/{user.id}'"),
    ],
)
def test_limits_of_a_key_that_cannot_be_are_refused_when_they_are_written(
    options: dict[str, Any], given: str, instead: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        PerKey(**{"template": "user/{id}", **options})
    text = words_of(refusal)
    assert given in text
    assert instead in text
