"""Limits per key: how many jobs of a key run, how many wait, and what happens to the next.

`PerKey("zendesk/{origin}/tickets")` runs one job and refuses others while it runs.
`PerKey.in_turn("user/{user.id}")` runs one job at a time; the others wait in order.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trellis.core.keys import Pointer, parse_template
from trellis.core.policy import Hold, KeyPolicy, OnLost, WhenFull
from trellis.declaration import checks
from trellis.declaration.secrets import Steps, is_secret
from trellis.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PerKey:
    """The limits of each key of a job type.

    >>> PerKey.in_turn("user/{user.id}").queued is None
    True
    """

    #: Constants and fields of the payload in braces: `"user/{user.id}"`.
    template: str
    #: How many jobs of a key run at the same time.
    active: int = 1
    #: How many more may wait; None: no limit.
    queued: int | None = 0
    #: What happens to a new job when its key is full.
    when_full: WhenFull = "reject"
    #: `attempt` frees the key between attempts; `job` keeps it until the job has ended.
    hold: Hold = "attempt"
    #: What happens to a job whose worker was lost, unless its type sets `on_lost`: `stale` ends it,
    #: because a newer job of the key does the same work; `retry` runs it again.
    on_lost: OnLost = "stale"

    def __post_init__(self) -> None:
        parse_template(checks.text("template", self.template, "user/{user.id}"))
        checks.whole_number("active", self.active, least=1)
        if self.queued is not None:
            checks.whole_number("queued", self.queued, least=0)
        checks.one_of(WhenFull, "when_full", self.when_full)
        checks.one_of(Hold, "hold", self.hold)
        checks.one_of(OnLost, "on_lost", self.on_lost)
        self.policy()

    @classmethod
    def in_turn(cls, template: str, *, active: int = 1, hold: Hold = "attempt") -> PerKey:
        """Run one job (or `active` jobs) at a time; all others wait in the order of creation."""
        return cls(template, active, None, "wait", hold, "retry")

    def policy(self) -> KeyPolicy:
        """Return the part that is stored with each job."""
        return KeyPolicy(self.template, self.active, self.queued, self.when_full, self.hold)


def check_fields(template: str, names: AbstractSet[str] | None, job_type: str) -> None:
    """Refuse a template that points at no field; `names` is None if the fields are not known."""
    if names is None:
        return
    for part in parse_template(template):
        if isinstance(part, Pointer) and part.steps[0] not in names:
            fields = f"has only {', '.join(sorted(names))}" if names else "has no fields"
            raise ConfigurationError(
                f"The key template {template!r} points at {part.steps[0]!r}, but the payload of "
                f"{job_type} {fields}. Point at a field of the payload."
            )


def check_secrets(template: str, secrets: AbstractSet[Steps], job_type: str) -> None:
    """Refuse a template that points at a secret: keys are shown without a mask."""
    for part in parse_template(template):
        if isinstance(part, Pointer) and is_secret(part.steps, secrets):
            raise ConfigurationError(
                f"The key template {template!r} points at {'.'.join(part.steps)!r}, which is "
                f"secret in the payload of {job_type}, and keys are shown. Point at another field."
            )
