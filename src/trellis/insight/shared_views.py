"""The public values of what jobs share: keys, queues, rates, the drain of all queues, and locks.

As in `views.py`: moments are aware datetimes, and the functions below make the values from what
engines store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from statistics import median_low

from trellis.core.durations import SECOND, Micros, micros, to_datetime
from trellis.engines.operating import DrainChange, LaneRates
from trellis.engines.values import KeyStatus, LockHolder, QueueSettings
from trellis.insight.limits import LimitView


@dataclass(frozen=True, slots=True)
class KeyView:
    """One key: the jobs that hold it, and how many wait for it."""

    service: str
    type: str
    key: str
    #: Jobs that hold a slot, oldest first.
    holders: tuple[str, ...]
    waiting: int
    #: A lost attempt holds it until an operator releases it.
    blocked: bool


@dataclass(frozen=True, slots=True)
class RateView:
    """How fast the jobs of a type or queue go, and how long the oldest has waited."""

    #: Since when the job that has waited longest could have started.
    waiting_since: datetime | None
    #: Attempts that began, and attempts that failed or were lost, per minute.
    started_per_minute: float
    failed_per_minute: float
    #: How long half of the jobs that ended took at most, in seconds.
    median_seconds: float | None
    #: Over how many seconds this was counted, until now.
    window_seconds: float


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue: what operators set, and what is in it."""

    service: str
    queue: str
    paused: bool
    draining: bool
    waiting: int
    active: int
    rates: RateView
    #: Its limit over all workers, if it has one.
    limit: LimitView | None = None


@dataclass(frozen=True, slots=True)
class DrainView:
    """Whether all queues drain, since when, who decided it, and why."""

    #: No new job is accepted in any queue.
    on: bool
    #: None if it was never changed.
    since: datetime | None
    actor: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class LockView:
    """One lock and its holder."""

    name: str
    worker: str
    #: The job whose attempt holds it; None for a lock of the worker process itself.
    job_id: str | None
    since: datetime


def key_view(status: KeyStatus) -> KeyView:
    """Return the view of a key."""
    return KeyView(
        status.service, status.type, status.key, status.holders, status.waiting, status.blocked
    )


def rate_view(lanes: Iterable[LaneRates], window: Micros) -> RateView:
    """Return the rates of some lanes together."""
    lanes = tuple(lanes)
    minutes = window / micros("1m")
    since = [lane.due_since for lane in lanes if lane.due_since is not None]
    durations = [duration for lane in lanes for duration in lane.durations]
    return RateView(
        to_datetime(min(since)) if since else None,
        sum(lane.started for lane in lanes) / minutes,
        sum(lane.failed for lane in lanes) / minutes,
        median_low(durations) / SECOND if durations else None,
        window / SECOND,
    )


def queue_view(
    settings: QueueSettings,
    waiting: int,
    active: int,
    rates: RateView,
    limit: LimitView | None = None,
) -> QueueView:
    """Return the view of a queue."""
    return QueueView(*settings, waiting, active, rates, limit)


def drain_view(change: DrainChange) -> DrainView:
    """Return the view of a change of the drain of all queues."""
    return DrainView(
        change.drain.on, to_datetime(change.at), change.drain.actor, change.drain.reason or None
    )


def lock_view(lock: LockHolder) -> LockView:
    """Return the view of a held lock."""
    return LockView(lock.name, lock.worker, lock.job_id, to_datetime(lock.since))
