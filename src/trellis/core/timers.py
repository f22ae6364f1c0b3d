"""Timers: deadline, timeout, activity timeout, cancel grace, retention.

Engines store `look_at` with each live job and return the jobs for which that instant has come;
`overdue` returns the command to apply then. Only the engine's clock counts.
"""

from __future__ import annotations

from typing import Final

from trellis.core.commands import Cancel, Command, Expire, Fail, LoseLease
from trellis.core.durations import SECOND, Instant, Micros, in_words
from trellis.core.job import Definition, Failure, Head
from trellis.core.policy import Policy
from trellis.core.states import State

#: The worker ends an attempt at its timeout; maintenance does so this much later.
TIMEOUT_SLACK: Final = 5 * SECOND


def look_at(definition: Definition, head: Head, seen_at: Instant | None = None) -> Instant | None:
    """Return when the next timer of this live job expires; None if it has none.

    `seen_at` is the last activity of the running attempt (a log line, progress, a heartbeat).
    """
    instants = [] if definition.deadline_at is None else [definition.deadline_at]
    if head.state is State.ACTIVE and head.claimed_at is not None and not head.blocked:
        policy = definition.policy
        if head.asked_at is not None:
            instants.append(head.asked_at + policy.cancel_grace)
        if policy.timeout is not None:
            instants.append(head.claimed_at + policy.timeout + TIMEOUT_SLACK)
        if policy.activity_timeout is not None:
            instants.append((seen_at or head.claimed_at) + policy.activity_timeout)
    return min(instants) if instants else None


def look_after(policy: Policy) -> tuple[Micros | None, Micros | None]:
    """Return how long after its claim an attempt times out, and counts as silent; None: never.

    For engines that claim many jobs in one statement: `look_at` of a new claim is the earliest of
    these instants and the deadline.
    """
    timeout = None if policy.timeout is None else policy.timeout + TIMEOUT_SLACK
    return timeout, policy.activity_timeout


def overdue(
    definition: Definition, head: Head, seen_at: Instant | None, now: Instant, roll: float
) -> Command | None:
    """Return the command for a timer that has expired; None if none has."""
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
    """Return when retention may remove an ended job; None if it has not ended.

    A job is kept at least as long as its dedupe key has a period: later requests refer to it.
    """
    if head.finished_at is None:
        return None
    until = head.finished_at + definition.policy.retention.keep(head.state)
    dedupe = definition.dedupe
    if dedupe is None or dedupe.period is None:
        return until
    return max(until, definition.created_at + dedupe.period)
