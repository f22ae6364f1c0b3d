"""Policies of a job type, and which of them is in force for a job.

A job keeps the policy of its type at creation, and what its creator said about it (`attempts`,
`timeout`). Each claim puts the policy that the worker declares in force, so that a changed policy
reaches jobs that wait, retry or run again; see `in_force`. Until its first claim a job also has the
hooks that workers declare for its type; see `before_claim`. Engines store each policy once, as
canonical JSON text, and jobs refer to it by a small number.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args

from trellis.core.durations import Micros, micros
from trellis.core.limits import Limit
from trellis.core.retry import Retry, RetryRules
from trellis.core.states import State
from trellis.errors import ConfigurationError

OnLost = Literal["retry", "fail", "stale", "block"]
OnShutdown = Literal["requeue", "fail"]
WhenFull = Literal["reject", "coalesce", "replace-oldest", "wait"]
Hold = Literal["attempt", "job"]
HookOn = Literal["success", "failure", "finished"]

DEFAULT_KEEP: Final = micros("7d")


def check_word(name: str, word: object, allowed: object) -> None:
    """Raise `ConfigurationError` for a word that is not one of those allowed."""
    choices = get_args(allowed)
    if word not in choices:
        raise ConfigurationError(
            f"{name}={word!r} is not known. Write one of {', '.join(map(repr, choices))}."
        )


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """How many jobs of one key may run and wait at the same time."""

    #: The template the key is derived from; see `trellis.core.keys`.
    template: str
    #: Slots: how many jobs of a key run at the same time.
    active: int = 1
    #: How many more may wait; None: no limit.
    queued: int | None = 0
    when_full: WhenFull = "reject"
    #: `attempt` frees the slot between attempts; `job` keeps it until the job has ended.
    hold: Hold = "attempt"
    #: How many jobs of a key start per time, such as `1/1s`, and how many at once; see `limit`.
    rate: str | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        Limit(None, self.rate, self.burst)  # raises for what is no rate
        check_word("when_full", self.when_full, WhenFull)
        check_word("hold", self.hold, Hold)
        if self.active < 1:
            raise ConfigurationError("A key needs at least one active slot.")
        if self.queued is not None and self.queued < 0:
            raise ConfigurationError("`queued` cannot be negative; use None for no limit.")

    @property
    def limit(self) -> Limit:
        """The rate of a key, which the scope `key` of the type is declared with."""
        return Limit(None, self.rate, self.burst)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long an ended job is kept, per state."""

    completed: Micros = DEFAULT_KEEP
    failed: Micros = micros("30d")
    dead: Micros = micros("90d")
    other: Micros = DEFAULT_KEEP

    def keep(self, state: State) -> Micros:
        """Return how long a job that ended in this state is kept."""
        match state:
            case State.COMPLETED | State.COMPLETED_WITH_ERRORS:
                return self.completed
            case State.FAILED:
                return self.failed
            case State.DEAD:
                return self.dead
            case _:
                return self.other


class Hook(NamedTuple):
    """A job type of the same service that runs when a job of this type has ended."""

    on: HookOn
    type: str
    queue: str
    #: The schema version of its jobs, and their deadline, counted from the end that creates them.
    schema_version: int = 1
    deadline: Micros | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Every rule about a job that does not depend on its handler."""

    retry: Retry = field(default_factory=Retry)
    #: Longest time one attempt may take; None: no limit.
    timeout: Micros | None = None
    #: Longest silence (no log, progress or heartbeat) of a running attempt.
    activity_timeout: Micros | None = None
    #: How long a handler may take to stop after a cancel; then its attempt is ended by force.
    cancel_grace: Micros = micros("30s")
    on_lost: OnLost = "retry"
    on_shutdown: OnShutdown = "requeue"
    #: Whether a job without attempts left becomes a dead letter (True) or fails.
    dead_letters: bool = True
    #: After this many crashes of its process the job is not run again.
    max_crashes: int = 3
    key: KeyPolicy | None = None
    retention: Retention = field(default_factory=Retention)
    #: Pointers to values that are shown masked: `/payload/card/number`, `/result/token`.
    secrets: tuple[str, ...] = ()
    #: Jobs that are created when a job of this type has ended; see `followups.py`.
    hooks: tuple[Hook, ...] = ()

    @property
    def has_timers(self) -> bool:
        """Whether a timer may end a running attempt."""
        return self.timeout is not None or self.activity_timeout is not None

    def __post_init__(self) -> None:
        check_word("on_lost", self.on_lost, OnLost)
        check_word("on_shutdown", self.on_shutdown, OnShutdown)
        if not isinstance(self.retry, Retry):
            raise ConfigurationError(
                f"retry={self.retry!r} is not a retry policy. Write retry=Retry(attempts=3)."
            )
        if self.on_lost == "block" and self.key is None:
            raise ConfigurationError(
                "on_lost='block' blocks a key, but this type has no key. Add per_key=PerKey(...)."
            )
        if self.max_crashes < 1:
            raise ConfigurationError("max_crashes must be at least 1.")


DEFAULT_POLICY: Final = Policy()


def in_force(
    created: Policy, declared: Policy | None, attempts: int | None, timeout: Micros | None
) -> Policy:
    """Return the policy that holds for a job.

    `created` is the policy of its type when it was created, `declared` that of the worker that
    claimed it last (None: it was never claimed), and the other two are what its creator asked for.
    The key policy is the one at creation: slots that jobs hold depend on it.
    """
    policy = created if declared is None else declared
    if policy.key != created.key or policy.secrets != created.secrets:
        is_stranded = created.key is None and policy.on_lost == "block"
        policy = replace(
            policy,
            key=created.key,
            on_lost="retry" if is_stranded else policy.on_lost,
            secrets=tuple(sorted({*policy.secrets, *created.secrets})),
        )
    if attempts is not None:
        policy = replace(policy, retry=replace(policy.retry, attempts=attempts))
    return policy if timeout is None else replace(policy, timeout=timeout)


def before_claim(created: Policy, declared: Policy | None) -> Policy:
    """Return the policy of a job that no worker has claimed, before what its creator asked for.

    `declared` is what workers declare for its type. The creator may not know all hooks and secrets
    of the type, so those are added; all else is as it was when the job was created.
    """
    if declared is None or not (declared.hooks or declared.secrets):
        return created
    known = {(hook.on, hook.type) for hook in declared.hooks}
    others = (hook for hook in created.hooks if (hook.on, hook.type) not in known)
    secrets = tuple(sorted({*created.secrets, *declared.secrets}))
    return replace(created, hooks=(*declared.hooks, *others), secrets=secrets)


@lru_cache(maxsize=4096)
def encode_policy(policy: Policy) -> str:
    """Write a policy as canonical JSON: equal policies give equal text."""
    # A function cannot be stored, and rules are stored only where there are any.
    body = asdict(replace(policy, retry=replace(policy.retry, backoff=None)))
    rules = RetryRules.__annotations__
    body["retry"] = {
        name: part for name, part in body["retry"].items() if part or name not in rules
    }
    if not policy.hooks:
        del body["hooks"]
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=4096)
def decode_policy(text: str) -> Policy:
    """Read a policy; fields that this version does not know are ignored."""
    body = json.loads(text)
    retry = _known(Retry, body["retry"])
    retry["delays"] = tuple(retry["delays"])
    key = body.get("key")
    return Policy(
        **_known(Policy, body)
        | {
            "retry": Retry(**retry),
            "key": KeyPolicy(**_known(KeyPolicy, key)) if key else None,
            "retention": Retention(**_known(Retention, body["retention"])),
            "secrets": tuple(body.get("secrets", ())),
            "hooks": tuple(Hook(*hook[: len(Hook._fields)]) for hook in body.get("hooks", ())),
        }
    )


def _known(kind: type, body: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in body.items() if name in names}
