"""The policies of a job type as keywords, and the `Policy` they make.

One typed dictionary serves every place that takes them, so no keyword can be forgotten in one of
them and type checkers know them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Literal, TypedDict, Unpack

from trellis.contract.per_key import PerKey
from trellis.core.policy import DEFAULT_POLICY, OnLost, OnShutdown, Policy, Retention
from trellis.core.retry import Retry
from trellis.core.spans import Micros, Span, micros
from trellis.errors import ConfigurationError

Kept = Literal["completed", "failed", "dead", "other"]


class PolicyOptions(TypedDict, total=False):
    """What may be promised about the jobs of a type."""

    #: Attempts and the waits between them.
    retry: Retry
    #: Longest time one attempt may take.
    timeout: Span
    #: Longest time without a log line, progress or heartbeat.
    activity_timeout: Span
    #: How long a handler may take to notice a cancel.
    cancel_grace: Span
    #: What becomes of a job whose worker was lost.
    on_lost: OnLost
    #: What becomes of a running job when its worker is told to stop.
    on_shutdown: OnShutdown
    #: Whether a job without attempts left waits for an operator instead of failing.
    dead_letters: bool
    #: How often a job may take its process down before it is given up.
    max_crashes: int
    #: Limits for each key.
    per_key: PerKey
    #: How long ended jobs are kept: one span for all, or one per way of ending.
    retention: Span | Mapping[Kept, Span]


class DeclareOptions(PolicyOptions, total=False):
    """What a named job type may be declared with."""

    #: The queue it waits in; a queue of its own unless given.
    queue: str
    #: How many run at once in one worker process; the worker's slots unless given.
    concurrency: int
    #: Jobs created without a deadline must end within this span.
    deadline: Span


class TypeOptions(DeclareOptions, total=False):
    """Everything a handler may be declared with."""

    #: The name of the type; the handler's own name unless given.
    name: str


def check_options(options: Iterable[str], known: type, what: str) -> None:
    """Refuse a keyword that the typed dictionary does not name; Python itself would let it pass."""
    names = sorted(known.__annotations__)
    for option in options:
        if option not in names:
            close = get_close_matches(option, names, 1)
            hint = f"Did you mean {close[0]}?" if close else f"It knows {', '.join(names)}."
            raise ConfigurationError(f"{what} has no option {option!r}. {hint}")


def make_policy(**options: Unpack[PolicyOptions]) -> Policy:
    """Return the policy that these keywords describe."""
    per_key = options.get("per_key")
    on_lost: OnLost = "retry" if per_key is None else per_key.on_lost
    return Policy(
        retry=options.get("retry", DEFAULT_POLICY.retry),
        timeout=_optional(options.get("timeout")),
        activity_timeout=_optional(options.get("activity_timeout")),
        cancel_grace=micros(options.get("cancel_grace", "30s")),
        on_lost=options.get("on_lost", on_lost),
        on_shutdown=options.get("on_shutdown", DEFAULT_POLICY.on_shutdown),
        dead_letters=options.get("dead_letters", DEFAULT_POLICY.dead_letters),
        max_crashes=options.get("max_crashes", DEFAULT_POLICY.max_crashes),
        key=None if per_key is None else per_key.policy(),
        retention=_retention(options.get("retention", {})),
    )


def _optional(span: Span | None) -> Micros | None:
    return None if span is None else micros(span)


def _retention(asked: Span | Mapping[Kept, Span]) -> Retention:
    names = [each.name for each in fields(Retention)]
    if not isinstance(asked, Mapping):
        return Retention(*(micros(asked) for _ in names))
    unknown = sorted(set(asked) - set(names))
    if unknown:
        raise ConfigurationError(
            f"retention does not know {', '.join(unknown)}. Name some of {', '.join(names)}."
        )
    return Retention(**{name: micros(span) for name, span in asked.items()})
