"""An overview of everything at one moment: counts, types, workers and running jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trellis.core.durations import to_datetime
from trellis.core.states import ENDED, State
from trellis.engines.port import Engine
from trellis.engines.values import Counts, JobFilter
from trellis.insight.views import (
    JobView,
    ProgressView,
    WorkerView,
    job_view,
    progress_view,
    worker_view,
)

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
    workers: tuple[WorkerView, ...]
    #: Some of the running jobs, the newest first.
    running: tuple[RunningJob, ...]

    @property
    def ended(self) -> int:
        """How many jobs have ended and are still kept."""
        return sum(self.states.get(state, 0) for state in ENDED)


async def overview(engine: Engine) -> Overview:
    """Read everything once."""
    counts = await engine.count(JobFilter(), "service", "type", "state")
    sessions = [worker_view(each) for each in await engine.sessions()]
    active = await engine.find(JobFilter(states=(State.ACTIVE,)), limit=_RUNNING)
    running = []
    for record in active.jobs:
        activity = await engine.activity(record.definition.id)
        progress = None if activity is None else progress_view(activity)
        running.append(RunningJob(job_view(record), progress))
    return Overview(
        to_datetime(counts.as_of),
        _states(counts),
        _types(counts),
        tuple(each for each in sessions if each.state != "ended"),
        tuple(running),
    )


def _states(counts: Counts) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, _, state), number in counts.combinations.items():
        found[state] = found.get(state, 0) + number
    return dict(sorted(found.items()))


def _types(counts: Counts) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (service, name, state), number in counts.combinations.items():
        if state in COUNTED_STATES:
            found.setdefault(f"{service}/{name}", {})[state] = number
    return dict(sorted(found.items()))
