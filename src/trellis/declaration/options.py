"""The policies of a job type as keywords, and the `Policy` they make.

One typed dictionary serves every place that takes them, so no keyword can be forgotten in one of
them and type checkers know them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Final, Literal, TypedDict, Unpack

from trellis.core.durations import Duration, Micros
from trellis.core.policy import DEFAULT_POLICY, OnLost, OnShutdown, Policy, Retention
from trellis.core.retry import Retry
from trellis.declaration import checks
from trellis.declaration.per_key import PerKey
from trellis.errors import ConfigurationError

Kept = Literal["completed", "failed", "dead", "other"]
#: Where a handler runs. `auto`: a coroutine on the worker's loop, a plain function in a thread.
#: `process`: in a child process, which can be killed whatever the handler does.
Isolation = Literal["auto", "process"]

#: What other job systems call it: the option here, and what to write.
_ELSEWHERE: Final = {
    **dict.fromkeys(
        ("max_retries", "retries", "max_attempts", "attempts"),
        ("retry", "retry=Retry(attempts=3)"),
    ),
    **dict.fromkeys(("countdown", "defer_by"), ("delay", "delay='10m'")),
    **dict.fromkeys(("eta", "run_at"), ("at", "at=datetime(2030, 1, 1, tzinfo=UTC)")),
}


class PolicyOptions(TypedDict, total=False):
    """What may be promised about the jobs of a type."""

    #: Attempts and the waits between them.
    retry: Retry
    #: Longest time one attempt may take; None is any time.
    timeout: Duration | None
    #: Longest time without a log line, progress or heartbeat; None is any time.
    activity_timeout: Duration | None
    #: How long a handler may take to notice a cancel.
    cancel_grace: Duration
    #: What becomes of a job whose worker was lost.
    on_lost: OnLost
    #: What becomes of a running job when its worker is told to stop.
    on_shutdown: OnShutdown
    #: Whether a job without attempts left waits for an operator instead of failing.
    dead_letters: bool
    #: How often a job may take its process down before it is given up.
    max_crashes: int
    #: Limits for each key; None is no key.
    per_key: PerKey | None
    #: How long ended jobs are kept: one span for all, or one per way of ending.
    retention: Duration | Mapping[Kept, Duration]


class DeclareOptions(PolicyOptions, total=False):
    """What a named job type may be declared with, and what a service may set for all its types."""

    #: The queue it waits in; a queue of its own unless given.
    queue: str | None
    #: How many run at once in one worker process; the worker's slots unless given.
    concurrency: int | None
    #: Jobs created without a deadline must end within this span; None is any time.
    deadline: Duration | None
    #: Where its handler runs: with the worker, or in a child process that can be killed.
    isolation: Isolation
    #: Whether records of `logging` made inside its handler, INFO and up, go to the job's log, too.
    capture_logs: bool


class TypeOptions(DeclareOptions, total=False):
    """Everything a handler may be declared with."""

    #: The name of the type; the handler's own name unless given.
    name: str


def with_defaults(defaults: DeclareOptions, options: TypeOptions) -> TypeOptions:
    """Return the options of a type, filled up with those of its service."""
    return {**defaults, **options}


def check_options(options: Iterable[str], known: type, what: str, otherwise: str = "") -> None:
    """Refuse a keyword that the typed dictionary does not name; Python itself would let it pass.

    `otherwise` says what the caller most likely meant, when that is known better than by spelling.
    """
    for option in options:
        if option not in known.__annotations__:
            hint = otherwise or _hint(option, sorted(known.__annotations__))
            raise ConfigurationError(f"{what} has no option {option!r}. {hint}")


def _hint(option: str, names: Sequence[str]) -> str:
    elsewhere, instead = _ELSEWHERE.get(option, ("", ""))
    if elsewhere in names:
        return f"Write {instead}."
    close = get_close_matches(option, names, 1)
    return f"Did you mean {close[0]}?" if close else f"It knows {', '.join(names)}."


def make_policy(**options: Unpack[PolicyOptions]) -> Policy:
    """Return the policy that these keywords describe."""
    per_key = _per_key(options.get("per_key"))
    on_lost: OnLost = "retry" if per_key is None else per_key.on_lost
    tuned = DEFAULT_POLICY
    return Policy(
        retry=_retry(options.get("retry", tuned.retry)),
        timeout=_limit("timeout", options.get("timeout")),
        activity_timeout=_limit("activity_timeout", options.get("activity_timeout")),
        cancel_grace=checks.duration("cancel_grace", options.get("cancel_grace", "30s")),
        on_lost=checks.one_of(OnLost, "on_lost", options.get("on_lost", on_lost)),
        on_shutdown=checks.one_of(
            OnShutdown, "on_shutdown", options.get("on_shutdown", tuned.on_shutdown)
        ),
        dead_letters=checks.flag("dead_letters", options.get("dead_letters", tuned.dead_letters)),
        max_crashes=checks.whole_number(
            "max_crashes", options.get("max_crashes", tuned.max_crashes), least=1
        ),
        key=None if per_key is None else per_key.policy(),
        retention=_retention(options.get("retention", {})),
    )


def _limit(name: str, asked: Duration | None) -> Micros | None:
    return None if asked is None else checks.positive_duration(name, asked)


def _retry(asked: object) -> Retry:
    if isinstance(asked, Retry):
        return asked
    is_count = isinstance(asked, int) and asked > 1
    instead = f"Retry(attempts={asked})" if is_count else "Retry.never() for one attempt"
    raise ConfigurationError(f"retry={asked!r} is not a Retry. Write retry={instead}.")


def _per_key(asked: object) -> PerKey | None:
    if asked is None or isinstance(asked, PerKey):
        return asked
    template = asked if isinstance(asked, str) else "user/{user.id}"
    raise ConfigurationError(
        f"per_key={asked!r} is not a PerKey. Write per_key=PerKey.in_turn({template!r}) to let the "
        f"jobs of a key wait for each other, or PerKey({template!r}) to refuse a second one."
    )


def _retention(asked: Duration | Mapping[Kept, Duration]) -> Retention:
    names = [each.name for each in fields(Retention)]
    if not isinstance(asked, Mapping):
        return Retention(*(checks.duration("retention", asked) for _ in names))
    unknown = sorted(map(str, set(asked) - set(names)))
    if unknown:
        raise ConfigurationError(
            f"retention does not know {', '.join(unknown)}. Name some of {', '.join(names)}."
        )
    return Retention(
        **{name: checks.duration(f"retention of {name}", span) for name, span in asked.items()}
    )
