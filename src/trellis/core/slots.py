"""What a job holds beyond its attempt: its key's slot, and the locks of a handler that runs on."""

from __future__ import annotations

from typing import Literal

from trellis.core.job import Definition, Head
from trellis.core.lifecycle import Transition
from trellis.core.states import WAITING, State


def may_run_on(transition: Transition) -> bool:
    """Tell whether the attempt was ended from outside while its handler may still run.

    Then what it holds, its slot and its locks, stays held until the worker reports that the handler
    stopped, for at most one lease.
    """
    return (
        transition.before.state is State.ACTIVE
        and transition.head.state is not State.ACTIVE
        and not transition.command.stopped
    )


def slot_effect(transition: Transition) -> Literal["keep", "free", "linger"]:
    """Say what a transition means for the key slot the job may hold.

    When lingering has ended the slot is free, unless the job keeps it between attempts
    (`keeps_slot`).
    """
    if may_run_on(transition):
        return "linger"
    after = transition.head
    if after.state is State.ACTIVE or keeps_slot(transition.definition, after):
        return "keep"
    return "free"


def keeps_slot(definition: Definition, head: Head) -> bool:
    """Tell whether a job keeps its slot although no attempt of it runs."""
    key = definition.policy.key
    return key is not None and key.hold == "job" and head.state in WAITING
