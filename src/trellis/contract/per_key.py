"""Jobs of one key: how many may run at once, how many may wait, and what happens to one too many.

`PerKey("zendesk/{origin}/tickets")` runs one and refuses the next while it does.
`PerKey.in_turn("user/{user.id}")` runs one at a time and lets the rest wait in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from trellis.core.keys import parse_template
from trellis.core.policy import Hold, KeyPolicy, OnLost, WhenFull


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
        parse_template(self.template)
        self.policy()

    @classmethod
    def in_turn(cls, template: str, *, active: int = 1, hold: Hold = "attempt") -> PerKey:
        """One at a time (or `active`), all the others wait in the order they were created."""
        return cls(template, active, None, "wait", hold, "retry")

    def policy(self) -> KeyPolicy:
        """Return the part of this that is frozen into each job."""
        return KeyPolicy(self.template, self.active, self.queued, self.when_full, self.hold)
