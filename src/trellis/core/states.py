"""The twelve states of a job. The database, the API and the command line use these exact words.

A job that waits for its `run_at` or for a slot of its key is `pending` or `retry` as well;
for what it waits is not part of its state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The state of a job."""

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


#: May be claimed when due.
WAITING: Final = frozenset({State.PENDING, State.RETRY})
#: Has a queue row: waiting or leased.
LIVE: Final = WAITING | {State.ACTIVE}
#: Has an outcome: does not run again, unless an operator acts.
ENDED: Final = frozenset(State) - LIVE
#: Final: no rule leaves these.
FINAL: Final = ENDED - {State.COMPLETED_WITH_ERRORS, State.FAILED, State.DEAD}
#: Ended with a result.
SUCCEEDED: Final = frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS})
#: Ended without a result, and not by a decision: what people mean by "failed".
UNSUCCESSFUL: Final = frozenset({State.FAILED, State.DEAD, State.STALE, State.EXPIRED})
#: Words for several states; filters take them wherever they take a state.
GROUPS: Final = {
    "waiting": WAITING,
    "running": frozenset({State.ACTIVE}),
    "ended": ENDED,
    "unsuccessful": UNSUCCESSFUL,
}
