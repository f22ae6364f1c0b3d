"""Limits per key: how many jobs of a key run, how many wait, and what happens to the next.

`PerKey("zendesk/{origin}/tickets")` runs one job and refuses others while it runs.
`PerKey.in_turn("user/{user.id}")` runs one job at a time; the others wait in order. A limit decides
which job may run when. What happens to a job whose worker was lost is another question, which the
type's option `on_lost` answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trellis.core.keys import Pointer, parse_template, template_of
from trellis.core.policy import Hold, KeyPolicy, WhenFull
from trellis.declaration import checks
from trellis.declaration.secrets import Steps, is_secret
from trellis.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PerKey:
    """The limits of each key of a job type.

    >>> PerKey.in_turn("user/{user.id}").queued is None
    True
    """

    #: Constants and fields of the payload in braces: `"user/{user.id}"`. Or a list of constants and
    #: JSON pointers, which `/` joins: `["user", "/user/id"]`.
    template: str | Sequence[str]
    #: How many jobs of a key run at the same time.
    active: int = 1
    #: How many more may wait; None: no limit.
    queued: int | None = 0
    #: What happens to a new job when its key is full: `reject` refuses it, `coalesce` returns a job
    #: that is there, `replace-oldest` skips the oldest one that waits and was never started, `wait`
    #: stores it anyway.
    when_full: WhenFull = "reject"
    #: `attempt` frees the slot of the key between attempts, so the next job may pass one that waits
    #: for its retry; `job` keeps it from the first time the job may run until it has ended.
    hold: Hold = "attempt"
    #: How many jobs of a key may start per time: a count and a duration, `"1/1s"`; None: no limit.
    rate: str | None = None
    #: How many of them may start at once; by default the count of the rate.
    burst: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.template, list | tuple):
            object.__setattr__(self, "template", template_of(self.template))
        parse_template(checks.text("template", self.template, "user/{user.id}"))
        checks.whole_number("active", self.active, least=1)
        if self.queued is not None:
            checks.whole_number("queued", self.queued, least=0)
        checks.one_of(WhenFull, "when_full", self.when_full)
        checks.one_of(Hold, "hold", self.hold)
        self.policy()

    @classmethod
    def in_turn(
        cls,
        template: str | Sequence[str],
        *,
        active: int = 1,
        strict: bool = False,
        rate: str | None = None,
        burst: int | None = None,
    ) -> PerKey:
        """Run one job (or `active` jobs) at a time; all others wait in their order.

        A job that waits for its retry lets the next one pass. With `strict` nothing passes it: it
        keeps its slot until it has ended (`hold="job"`).

        >>> PerKey.in_turn("customer/{customer}", strict=True).hold
        'job'
        """
        hold: Hold = "job" if checks.flag("strict", strict) else "attempt"
        return cls(template, active, None, "wait", hold, rate, burst)

    def policy(self) -> KeyPolicy:
        """Return the part that is stored with each job."""
        return KeyPolicy(
            str(self.template),
            self.active,
            self.queued,
            self.when_full,
            self.hold,
            self.rate,
            self.burst,
        )


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
