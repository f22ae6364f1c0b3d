"""Options of a job type as keywords, and the `Policy` made from them.

Every function that takes these keywords uses the same typed dictionaries, so type checkers know
them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final, Literal, TypedDict, Unpack

from trellis.core.durations import Duration, Micros
from trellis.core.limits import Limit
from trellis.core.policy import DEFAULT_POLICY, OnLost, OnShutdown, Policy, Retention
from trellis.core.retry import Retry
from trellis.declaration import checks
from trellis.declaration.extensions import AroundFunction
from trellis.declaration.fair import Fair
from trellis.declaration.per_key import PerKey
from trellis.errors import ConfigurationError

Kept = Literal["completed", "failed", "dead", "other"]
#: Where a handler runs. `auto`: a coroutine on the worker's loop, a plain function in a thread.
#: `process`: in a child process, which can always be killed.
Isolation = Literal["auto", "process"]

#: Names of options in other job systems: the options here, and what to write.
_ELSEWHERE: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    **dict.fromkeys(
        ("max_retries", "retries", "max_attempts", "attempts"),
        (("retry", "retry=Retry(attempts=3)"), ("attempts", "attempts=3")),
    ),
    "autoretry_for": (("retry", "retry=Retry(on=(ConnectionError,))"),),
    "dont_autoretry_for": (("retry", "retry=Retry(never_on=(ValueError,))"),),
    "retry_backoff": (("retry", "retry=Retry.exponential('5s')"),),
    **dict.fromkeys(("time_limit", "soft_time_limit"), (("timeout", "timeout='1m'"),)),
    "rate_limit": (("limit", "limit=Limit(rate='100/1m')"),),
    "expires": (("deadline", "deadline='1h'"),),
    **dict.fromkeys(("countdown", "defer_by"), (("delay", "delay='10m'"),)),
    **dict.fromkeys(("eta", "run_at"), (("at", "at=datetime(2030, 1, 1, tzinfo=UTC)"),)),
    "task_id": (("idempotency_key", "idempotency_key='call-1'"),),
}
#: Options that only a job has, not its type.
_OF_ONE: Final = frozenset({"at", "delay", "idempotency_key"})
#: Names of options for periodic jobs in other job systems.
_PERIODIC: Final = frozenset(
    {"cron", "crontab", "every", "interval", "periodic", "repeat", "run_every", "schedule"}
)


class PolicyOptions(TypedDict, total=False):
    """The policies of a job type."""

    #: How many attempts, the delays between them, and which exceptions are retried.
    retry: Retry
    #: Longest time one attempt may take; None: no limit.
    timeout: Duration | None
    #: Longest time without a log line, progress or heartbeat; None: no limit.
    activity_timeout: Duration | None
    #: How long a handler may take to stop after a cancel; then its attempt is ended by force.
    cancel_grace: Duration
    #: What happens to a job whose worker was lost: `retry` runs it again, `fail` ends it as failed,
    #: `stale` ends it as stale, `block` keeps its key taken until an operator releases it.
    on_lost: OnLost
    #: What happens to a job that still runs after the grace of a worker that stops: `requeue` hands
    #: it back uncounted, `fail` ends it as failed.
    on_shutdown: OnShutdown
    #: Whether a job without attempts left becomes a dead letter instead of failing.
    dead_letters: bool
    #: After this many crashes of its process a job is not run again.
    max_crashes: int
    #: Limits for each key; None: no key.
    per_key: PerKey | None
    #: How long ended jobs are kept: one duration for all, or one for each kind of end.
    retention: Duration | Mapping[Kept, Duration]


class DeclareOptions(PolicyOptions, total=False):
    """Options of a declared job type, and of the defaults of a service."""

    #: The queue of its jobs; by default a queue with the name of the type.
    queue: str | None
    #: How many run at the same time in one worker process; by default as many as it has slots.
    concurrency: int | None
    #: How many run at the same time over all workers, and how many start per time; None: no limit.
    limit: Limit | None
    #: Which tenant a job belongs to: a template like that of a key, or a `Fair` with weights. The
    #: tenants of a queue take turns. None: the order of claims knows no tenants.
    fair: str | Fair | None
    #: Jobs created without a deadline must end within this time; None: no limit.
    deadline: Duration | None
    #: Where its handler runs. `auto`: a coroutine on the worker's event loop, a plain function in a
    #: thread; `process`: in a child process that can be killed.
    isolation: Isolation
    #: Whether records of `logging` made by its handler, INFO and up, are added to the job's log.
    capture_logs: bool
    #: Returns the present configuration, which a job with `expect=` is compared with before its
    #: handler is called. It takes what a handler may take: nothing, the payload, an `ActiveJob`.
    config: Callable[..., Any] | None
    #: The version of the payload's schema. Raise it by one for a change that old payloads do not
    #: survive, and add an upgrader: `@job.upgrade(from_version=1)`.
    schema_version: int
    #: Generator functions that surround each call of its handler; each takes the job and yields
    #: once. Those of `@service.around` are outside of them.
    around: Sequence[AroundFunction]


class TypeOptions(DeclareOptions, total=False):
    """Options of a job type that is declared by its handler."""

    #: The name of the type; by default that of the handler.
    name: str


def with_defaults(defaults: DeclareOptions, options: TypeOptions) -> TypeOptions:
    """Return the options of a type; those of its service where it has none."""
    return {**defaults, **options}


def check_options(options: Iterable[str], known: type, what: str, advice: str = "") -> None:
    """Raise `ConfigurationError` for a keyword that the typed dictionary does not have.

    `what` begins the error: "A job has". `advice` is its last sentence; by default the option with
    the nearest spelling.
    """
    for option in options:
        if option not in known.__annotations__:
            hint = advice or _hint(option, sorted(known.__annotations__))
            raise ConfigurationError(f"{what} no option {option!r}. {hint}")


def _hint(option: str, names: Sequence[str]) -> str:
    if option in _PERIODIC:
        return (
            "Write @service.schedule('0 3 * * *') above @service.job, or "
            "service.schedule(job, every='15m')."
        )
    if option in _ELSEWHERE:
        return f"Write {_instead(_ELSEWHERE[option], names)}."
    close = get_close_matches(option, names, 1)
    return f"Did you mean {close[0]}?" if close else f"Its options are {', '.join(names)}."


def _instead(ways: Sequence[tuple[str, str]], names: Sequence[str]) -> str:
    for ours, text in ways:
        if ours in names:
            return text
    ours, text = ways[0]
    return f"create(payload, {text})" if ours in _OF_ONE else f"@service.job({text})"


def make_policy(**options: Unpack[PolicyOptions]) -> Policy:
    """Return the policy of these keywords."""
    per_key = _per_key(options.get("per_key"))
    defaults = DEFAULT_POLICY
    return Policy(
        retry=_retry(options.get("retry", defaults.retry)),
        timeout=_limit("timeout", options.get("timeout")),
        activity_timeout=_limit("activity_timeout", options.get("activity_timeout")),
        cancel_grace=checks.duration("cancel_grace", options.get("cancel_grace", "30s")),
        on_lost=checks.one_of(OnLost, "on_lost", options.get("on_lost", defaults.on_lost)),
        on_shutdown=checks.one_of(
            OnShutdown, "on_shutdown", options.get("on_shutdown", defaults.on_shutdown)
        ),
        dead_letters=checks.flag(
            "dead_letters", options.get("dead_letters", defaults.dead_letters)
        ),
        max_crashes=checks.whole_number(
            "max_crashes", options.get("max_crashes", defaults.max_crashes), least=1
        ),
        key=None if per_key is None else per_key.policy(),
        retention=_retention(options.get("retention", {})),
    )


def _limit(name: str, value: Duration | None) -> Micros | None:
    return None if value is None else checks.positive_duration(name, value)


def _retry(value: object) -> Retry:
    if isinstance(value, Retry):
        return value
    is_count = isinstance(value, int) and value > 1
    instead = f"Retry(attempts={value})" if is_count else "Retry.never() for one attempt"
    raise ConfigurationError(f"retry={value!r} is not a Retry. Write retry={instead}.")


def check_limit(value: object) -> Limit | None:
    """Return the limit of an option; None is no limit."""
    if value is None or isinstance(value, Limit):
        return value
    example = f"Limit(active={value})" if isinstance(value, int) else 'Limit(rate="100/1m")'
    raise ConfigurationError(f"limit={value!r} is not a Limit. Write limit={example}.")


def _per_key(value: object) -> PerKey | None:
    if value is None or isinstance(value, PerKey):
        return value
    template = value if isinstance(value, str) else "user/{user.id}"
    raise ConfigurationError(
        f"per_key={value!r} is not a PerKey. Write per_key=PerKey.in_turn({template!r}) to let the "
        f"jobs of a key wait for each other, or PerKey({template!r}) to refuse a second one."
    )


def _retention(value: Duration | Mapping[Kept, Duration]) -> Retention:
    names = [each.name for each in fields(Retention)]
    if not isinstance(value, Mapping):
        return Retention(*(checks.duration("retention", value) for _ in names))
    unknown = sorted(map(str, set(value) - set(names)))
    if unknown:
        raise ConfigurationError(f"retention has no {', '.join(unknown)}. Use {', '.join(names)}.")
    return Retention(
        **{name: checks.duration(f"retention of {name}", keep) for name, keep in value.items()}
    )
