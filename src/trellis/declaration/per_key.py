"""Jobs of one key: how many may run at once, how many may wait, and what happens to one too many.

`PerKey("zendesk/{origin}/tickets")` runs one and refuses the next while it does.
`PerKey.in_turn("user/{user.id}")` runs one at a time and lets the rest wait in order.
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
    #: How many more may wait; None is any number.
    queued: int | None = 0
    #: What happens to a job that finds its key full.
    when_full: WhenFull = "reject"
    #: `attempt` frees the key between attempts; `job` keeps it until the job has ended.
    hold: Hold = "attempt"
    #: What becomes of a job whose worker was lost, unless its type says otherwise: `stale` gives it
    #: up, because a newer job of the key is as good; `retry` runs it again.
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
        """One at a time (or `active`), all the others wait in the order they were created."""
        return cls(template, active, None, "wait", hold, "retry")

    def policy(self) -> KeyPolicy:
        """Return the part of this that is frozen into each job."""
        return KeyPolicy(self.template, self.active, self.queued, self.when_full, self.hold)


def check_fields(template: str, names: AbstractSet[str] | None, job_type: str) -> None:
    """Refuse a template that points at a field no payload has; `names` is None if nobody knows."""
    if names is None:
        return
    for part in parse_template(template):
        if isinstance(part, Pointer) and part.steps[0] not in names:
            has = f"has only {', '.join(sorted(names))}" if names else "has no fields"
            raise ConfigurationError(
                f"The key template {template!r} points at {part.steps[0]!r}, but the payload of "
                f"{job_type} {has}. Point at a field of the payload."
            )


def check_secrets(template: str, secrets: AbstractSet[Steps], job_type: str) -> None:
    """Refuse a template that points at a secret: keys are shown to everybody who may look."""
    for part in parse_template(template):
        if isinstance(part, Pointer) and is_secret(part.steps, secrets):
            raise ConfigurationError(
                f"The key template {template!r} points at {'.'.join(part.steps)!r}, which is "
                f"secret in the payload of {job_type}, and keys are shown. Point at another field."
            )
