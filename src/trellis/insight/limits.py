"""Limits as people see them: their public value, and when one keeps a job from starting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from trellis.core.durations import Instant, in_words, to_datetime
from trellis.core.job import JobRecord
from trellis.core.limits import Scope, ScopeKind
from trellis.engines.limits import LimitStatus, scopes_of
from trellis.engines.values import KeyStatus
from trellis.insight.time_expressions import roughly

LimitCode = Literal["limit_reached", "rate_limited", "key_rate_limited"]


@dataclass(frozen=True, slots=True)
class LimitView:
    """The limit of a queue or a type over all workers, and how far it is used.

    The kind `key` is the rate of each key of a type: every key has tokens of its own.
    """

    kind: ScopeKind
    service: str
    #: The queue or the type.
    name: str
    #: How many may run at the same time; None: no limit.
    active: int | None
    #: How many may start per time, such as `100/1m`; None: no limit.
    rate: str | None
    burst: int | None
    #: Jobs that run, and ended attempts whose handlers may still run.
    running: int
    #: How many may start now by the rate.
    tokens: int | None
    #: When the next may start by the rate; None: at once.
    next_at: datetime | None
    #: The parts that an operator has set; the others are as declared.
    set_by_operator: tuple[str, ...]
    #: The limit in words.
    text: str


def limit_view(status: LimitStatus) -> LimitView:
    """Return the view of a limit."""
    setting, running, tokens, next_at = status
    limit = setting.in_force
    return LimitView(
        *setting.scope,
        limit.active,
        limit.rate,
        limit.burst,
        running,
        tokens,
        None if next_at is None else to_datetime(next_at),
        tuple(sorted(setting.override.parts)),
        f"{limit} per key" if setting.scope.kind == "key" and limit else str(limit),
    )


def limit_causes(
    record: JobRecord, key: KeyStatus | None, limits: Sequence[LimitStatus], now: Instant
) -> Iterator[tuple[LimitCode, str, str]]:
    """Yield which limits keep a job from starting: a code, a text, and the command that helps."""
    definition = record.definition
    if record.head.run_at > now:
        return
    yield from _key_rate(record, key, limits, now)
    scopes = scopes_of((definition.service, definition.queue, definition.type))
    for setting, running, tokens, next_at in limits:
        scope, limit = setting.scope, setting.in_force
        if scope not in scopes:
            continue
        what = "Queue" if scope.kind == "queue" else "Type"
        command = f"trellis queues set {'--type ' if scope.kind == 'type' else ''}{scope}"
        if limit.active is not None and running >= limit.active:
            text = (
                f"{what} {scope} may run {in_jobs(limit.active)} at a time over all workers, and "
                f"{running} {'runs' if running == 1 else 'run'}."
            )
            yield "limit_reached", text, f"{command} --concurrency {running + 1}"
        bucket = limit.bucket
        if bucket is not None and tokens == 0:
            wait = roughly((next_at or now) - now)
            text = (
                f"{what} {scope} may start {in_jobs(bucket.starts)} per {in_words(bucket.period)} "
                f"over all workers; the next may start in {wait}."
            )
            faster = f"{2 * bucket.starts}/{in_words(bucket.period)}"
            yield "rate_limited", text, f"{command} --rate {faster}"


def _key_rate(
    record: JobRecord, key: KeyStatus | None, limits: Sequence[LimitStatus], now: Instant
) -> Iterator[tuple[LimitCode, str, str]]:
    """Yield that a job waits for a token of its key, if it does."""
    definition = record.definition
    policy = definition.policy.key
    if key is None or policy is None:
        return
    scope = Scope("key", definition.service, definition.type)
    stored = {status.setting.scope: status.setting.in_force for status in limits}
    rate = stored.get(scope, policy.limit).bucket
    has_slot = definition.id in key.holders
    if rate is None or (not has_slot and key.taken >= policy.active):
        return
    text = f"Key {key.key!r} may start {in_jobs(rate.starts)} per {in_words(rate.period)}"
    if not rate.tokens(key.spent, now):
        text += f"; the next may start in {roughly(rate.token_at(key.spent, now) - now)}."
    elif not has_slot:
        text += ", and other jobs of it start first."
    else:
        return
    faster = f"{2 * rate.starts}/{in_words(rate.period)}"
    yield "key_rate_limited", text, f"trellis queues set --per-key {scope} --rate {faster}"


def in_jobs(count: int) -> str:
    """Return a number of jobs in words."""
    return "1 job" if count == 1 else f"{count:,} jobs"
