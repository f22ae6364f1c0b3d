"""Everything at a glance: counts, types, workers and what runs, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trellis.core.spans import to_datetime
from trellis.core.states import ENDED, State
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter
from trellis.insight.viewing import job_view, progress_view, worker_view
from trellis.insight.views import JobView, ProgressView, WorkerView

_RUNNING: Final = 20
#: The states that are counted per type: those an operator may have to do something about.
TOLD: Final = (State.PENDING, State.ACTIVE, State.RETRY, State.FAILED, State.DEAD)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs, and how far it is."""

    job: JobView
    progress: ProgressView | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What is going on."""

    as_of: datetime
    #: How many jobs are in each state.
    states: Mapping[str, int]
    #: For each service/type that has any, how many are in each of the states in `TOLD`.
    types: Mapping[str, Mapping[str, int]]
    workers: tuple[WorkerView, ...]
    #: Some of the running jobs, the newest first.
    running: tuple[RunningJob, ...]

    @property
    def ended(self) -> int:
        """How many jobs have ended and are still kept."""
        return sum(self.states.get(state, 0) for state in ENDED)


async def overview(engine: Engine) -> Overview:
    """Look at everything once."""
    counts = await engine.count(JobFilter(), "state")
    sessions = [worker_view(each) for each in await engine.sessions()]
    active = await engine.find(JobFilter(states=(State.ACTIVE,)), limit=_RUNNING)
    running = []
    for record in active.jobs:
        said = await engine.activity(record.definition.id)
        running.append(RunningJob(job_view(record), None if said is None else progress_view(said)))
    return Overview(
        to_datetime(counts.as_of),
        dict(counts.groups),
        await _types(engine, counts.groups),
        tuple(each for each in sessions if each.state != "ended"),
        tuple(running),
    )


async def _types(engine: Engine, present: Mapping[str, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    services = (await engine.count(JobFilter(), "service")).groups if present else ()
    for service in services:
        for state in (each for each in TOLD if present.get(each)):
            where = JobFilter(services=(service,), states=(state,))
            for name, number in (await engine.count(where, "type")).groups.items():
                found.setdefault(f"{service}/{name}", {})[state.value] = number
    return dict(sorted(found.items()))
