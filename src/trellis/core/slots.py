"""What a transition does to the key slot of a job.

A settled attempt frees its slot, unless the key is held for the whole job (`hold="job"`). So does
an attempt whose worker died: its handler has stopped for certain, and the guardian or a sweep
settles it (`worker/guardian/settle_dead.py`, `worker/maintenance.py`).

An attempt that was ended from outside may leave a handler that still runs. Its slot and its locks
then linger: they stay held until the worker reports that the handler has stopped, for at most one
lease.
"""

from __future__ import annotations

from typing import Literal

from trellis.core.job import Definition, Head
from trellis.core.lifecycle import Transition
from trellis.core.states import WAITING, State


def may_run_on(transition: Transition) -> bool:
    """Return whether the attempt was ended from outside while its handler may still run."""
    return (
        transition.before.state is State.ACTIVE
        and transition.head.state is not State.ACTIVE
        and not transition.command.stopped
    )


def slot_effect(transition: Transition) -> Literal["keep", "free", "linger"]:
    """Return what a transition does to the key slot of its job.

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
    """Return whether a waiting job keeps its slot between attempts.

    Before its first claim it does not: an operator may postpone it, and others need not wait then.
    """
    key = definition.policy.key
    return key is not None and key.hold == "job" and head.state in WAITING and head.claims > 0
