"""The twelve states of a job; these exact words stand in the database, the API and the screens.

Waiting for a later `run_at` or for a slot of a key is a fact about a waiting job, not a state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    ACTIVE = "active"
    RETRY = "retry"
    COMPLETED = "completed"
    COMPLETED_WITH_ERRORS = "completed_with_errors"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    STALE = "stale"
    DEAD = "dead"
    DISMISSED = "dismissed"


#: May be claimed once due.
WAITING: Final = frozenset({State.PENDING, State.RETRY})
#: Has a queue row: waiting or leased.
LIVE: Final = WAITING | {State.ACTIVE}
#: Has an outcome: nothing runs and nothing will, unless an operator acts.
ENDED: Final = frozenset(State) - LIVE
#: Ended for good: no rule leaves these.
FINAL: Final = ENDED - {State.FAILED, State.DEAD}
#: Ended with a result.
SUCCEEDED: Final = frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS})
