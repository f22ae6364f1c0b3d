"""An overview of everything at one moment: counts, types, workers and running jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trellis.core.durations import to_datetime
from trellis.core.job import JobId
from trellis.core.states import ENDED, State
from trellis.engines.operating import LaneRates, Rates
from trellis.engines.port import Engine
from trellis.engines.values import Counts, JobFilter
from trellis.insight.attempts import job_views
from trellis.insight.shared_views import RateView, rate_view
from trellis.insight.views import JobView, ProgressView, progress_view
from trellis.insight.worker_views import WorkerView, worker_view

_RUNNING: Final = 20
#: The states that are counted per type: those an operator may have to do something about.
COUNTED_STATES: Final = (State.PENDING, State.ACTIVE, State.RETRY, State.FAILED, State.DEAD)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job and its progress."""

    job: JobView
    progress: ProgressView | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts, workers and running jobs at one moment."""

    as_of: datetime
    #: How many jobs are in each state.
    states: Mapping[str, int]
    #: For each service/type that has any, how many are in each of the states in `COUNTED_STATES`.
    types: Mapping[str, Mapping[str, int]]
    #: For each service/type to which something happened recently, or that waits: how fast it goes.
    rates: Mapping[str, RateView]
    workers: tuple[WorkerView, ...]
    #: Some of the running jobs, the newest first.
    running: tuple[RunningJob, ...]
    #: Jobs whose worker was lost and which block their keys until an operator decides, the newest
    #: first.
    blocked: tuple[JobView, ...]
    #: No new job is accepted in any queue.
    draining: bool

    @property
    def ended(self) -> int:
        """How many jobs have ended and are still kept."""
        return sum(self.states.get(state, 0) for state in ENDED)


async def overview(engine: Engine) -> Overview:
    """Read everything once."""
    counts = await engine.count(JobFilter(), "service", "type", "state")
    now = counts.as_of
    sessions = [worker_view(each, now) for each in await engine.sessions() if each.is_worker]
    blocked = await engine.find(JobFilter(blocked=True), limit=_RUNNING)
    active = await engine.find(
        JobFilter(states=(State.ACTIVE,)), limit=_RUNNING + len(blocked.jobs)
    )
    claimed = [each for each in active.jobs if not each.head.blocked][:_RUNNING]
    running = []
    for view in await job_views(engine, claimed):
        activity = await engine.activity(JobId(view.id))
        progress = None if activity is None else progress_view(activity)
        running.append(RunningJob(view, progress))
    drains = await engine.drain_changes(1)
    return Overview(
        to_datetime(counts.as_of),
        _states(counts),
        _types(counts),
        _rates(await engine.rates()),
        tuple(each for each in sessions if each.state != "ended"),
        tuple(running),
        tuple(await job_views(engine, blocked.jobs)),
        bool(drains) and drains[0].drain.on,
    )


def _states(counts: Counts) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, _, state), number in counts.combinations.items():
        found[state] = found.get(state, 0) + number
    return dict(sorted(found.items()))


def _rates(rates: Rates) -> dict[str, RateView]:
    lanes: dict[str, list[LaneRates]] = {}
    for lane in rates.lanes:
        lanes.setdefault(f"{lane.service}/{lane.type}", []).append(lane)
    return {name: rate_view(each, rates.window) for name, each in sorted(lanes.items())}


def _types(counts: Counts) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (service, name, state), number in counts.combinations.items():
        if state in COUNTED_STATES:
            found.setdefault(f"{service}/{name}", {})[state] = number
    return dict(sorted(found.items()))
