"""When the clock alone may change a job, and what it then asks.

Engines store `look_at` beside each live job and hand back the jobs whose moment has come;
`overdue` says which command that moment calls for. The engine's clock decides, nobody else's.
"""

from __future__ import annotations

from typing import Final

from trellis.core.commands import Cancel, Command, Expire, Fail, LoseLease
from trellis.core.durations import SECOND, Instant, Micros, in_words
from trellis.core.job import Definition, Failure, Head
from trellis.core.policy import Policy
from trellis.core.states import State

#: Workers end a timed-out attempt themselves; only when none did so this much later does the clock.
TIMEOUT_SLACK: Final = 5 * SECOND


def look_at(definition: Definition, head: Head, seen_at: Instant | None = None) -> Instant | None:
    """Return when this live job must be looked at; None is never.

    `seen_at` is the last sign of life of the running attempt (a log line, progress, a heartbeat).
    """
    moments = [] if definition.deadline_at is None else [definition.deadline_at]
    if head.state is State.ACTIVE and head.claimed_at is not None and not head.blocked:
        policy = definition.policy
        if head.asked_at is not None:
            moments.append(head.asked_at + policy.cancel_grace)
        if policy.timeout is not None:
            moments.append(head.claimed_at + policy.timeout + TIMEOUT_SLACK)
        if policy.activity_timeout is not None:
            moments.append((seen_at or head.claimed_at) + policy.activity_timeout)
    return min(moments) if moments else None


def look_after(policy: Policy) -> Micros | None:
    """Return how long after its claim an attempt must be looked at; None is never.

    For engines that claim many jobs in one statement: `look_at` of a fresh claim is the earlier of
    this moment and the deadline.
    """
    spans = [] if policy.timeout is None else [policy.timeout + TIMEOUT_SLACK]
    if policy.activity_timeout is not None:
        spans.append(policy.activity_timeout)
    return min(spans) if spans else None


def overdue(
    definition: Definition, head: Head, seen_at: Instant | None, now: Instant, roll: float
) -> Command | None:
    """Return the command that the clock calls for now, if any."""
    if definition.deadline_at is not None and definition.deadline_at <= now:
        return Expire()
    if head.state is not State.ACTIVE or head.fence is None or head.claimed_at is None:
        return None
    policy = definition.policy
    if head.blocked:
        return None
    if head.asked_at is not None and head.asked_at + policy.cancel_grace <= now:
        return Cancel("The handler did not stop within the cancel grace.", True, "maintenance")
    timeout = policy.timeout
    if timeout is not None and head.claimed_at + timeout + TIMEOUT_SLACK <= now:
        error = Failure("timeout", f"The attempt took longer than {in_words(timeout)}.")
        return Fail(head.fence, error, roll=roll, stopped=False)
    silence = policy.activity_timeout
    if silence is not None and (seen_at or head.claimed_at) + silence <= now:
        message = f"No log, progress or heartbeat for {in_words(silence)}."
        return LoseLease(head.fence, message, roll, stopped=False)
    return None


def keep_until(definition: Definition, head: Head) -> Instant | None:
    """Return when retention may remove an ended job."""
    if head.finished_at is None:
        return None
    return head.finished_at + definition.policy.retention.keep(head.state)
