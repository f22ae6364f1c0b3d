"""What operators ask of an engine: values of the port, as in `values.py`.

The drain of all queues is one switch for the whole store, and every change of it is kept. Facts of
a job are what people want to see and no rule needs, so they are no part of the head: they are read
only for pages of jobs. The name of a worker process is kept as long as a job that it may have run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trellis.core.durations import Instant, Micros, micros
from trellis.core.job import SessionId

#: Service and queue of the row by which SQL engines store that all queues drain.
ALL_QUEUES: Final = ("*", "*")


class Drain(NamedTuple):
    """Whether all queues drain; who decided it, and why."""

    #: No new job is accepted in any queue.
    on: bool
    actor: str
    reason: str = ""


class DrainChange(NamedTuple):
    """A change of the drain of all queues."""

    at: Instant
    drain: Drain


class WorkerName(NamedTuple):
    """Which process a worker was."""

    name: str
    host: str
    pid: int


class JobFacts(NamedTuple):
    """What people want to know of a job beside its definition and head."""

    #: When the handler of the latest attempt began, as far as that is stored.
    started_at: Instant | None
    #: When the job last changed.
    updated_at: Instant
    #: Which worker process has, or had, the latest attempt.
    session: SessionId | None
    worker: WorkerName | None
    #: JSON text; of an ended job.
    result: str | None


#: How far back rates look, and how many of the latest events and ended jobs they read at most, so
#: that they cost the same in a store of any size and at any speed.
RATE_WINDOW: Final[Micros] = micros("5m")
RATE_EVENTS: Final = 20_000
RATE_DURATIONS: Final = 2_000


class LaneRates(NamedTuple):
    """What has happened to the jobs of one type in one queue recently."""

    service: str
    queue: str
    type: str
    #: Attempts that began, and attempts that failed or were lost.
    started: int = 0
    failed: int = 0
    #: How long the last attempts of the jobs took that ended recently, the shortest first.
    durations: tuple[Micros, ...] = ()
    #: When the job that has waited longest could have started.
    due_since: Instant | None = None


class Rates(NamedTuple):
    """What has happened recently, by service, queue and type."""

    as_of: Instant
    #: What is counted happened within this time; less than `RATE_WINDOW` where much happened.
    window: Micros
    lanes: tuple[LaneRates, ...]


class RecentEvents(NamedTuple):
    """Events of a lane that were read: how many began or failed an attempt, and the earliest."""

    started: int
    failed: int
    first_at: Instant


Lane = tuple[str, str, str]


def rates_of(
    as_of: Instant,
    events: Mapping[Lane, RecentEvents],
    durations: Mapping[Lane, Sequence[Micros]],
    due_since: Mapping[Lane, Instant],
    *,
    is_cut: bool,
) -> Rates:
    """Return the rates; `is_cut`: there were more events in the window than were read."""
    first = min((each.first_at for each in events.values()), default=as_of)
    lanes = tuple(
        LaneRates(
            *lane,
            events[lane].started if lane in events else 0,
            events[lane].failed if lane in events else 0,
            tuple(sorted(durations.get(lane, ()))),
            due_since.get(lane),
        )
        for lane in sorted({*events, *durations, *due_since})
    )
    return Rates(as_of, max(as_of - first, 1) if is_cut else RATE_WINDOW, lanes)
