"""Policies of a job type: copied into every job at creation and never changed afterwards.

Engines store each policy once, as canonical JSON text, and jobs refer to it by a small number.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from trellis.core.durations import Micros, micros
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.errors import ConfigurationError

OnLost = Literal["retry", "fail", "stale", "block"]
OnShutdown = Literal["requeue", "fail"]
WhenFull = Literal["reject", "coalesce", "replace-oldest", "wait"]
Hold = Literal["attempt", "job"]

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

    def __post_init__(self) -> None:
        check_word("when_full", self.when_full, WhenFull)
        check_word("hold", self.hold, Hold)
        if self.active < 1:
            raise ConfigurationError("A key needs at least one active slot.")
        if self.queued is not None and self.queued < 0:
            raise ConfigurationError("`queued` cannot be negative; use None for no limit.")


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

    @property
    def is_watched(self) -> bool:
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


@lru_cache(maxsize=4096)
def encode_policy(policy: Policy) -> str:
    """Write a policy as canonical JSON: equal policies give equal text."""
    return json.dumps(asdict(policy), sort_keys=True, separators=(",", ":"))


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
        }
    )


def _known(kind: type, body: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in body.items() if name in names}
