"""Jobs as people see them, with who ran them, and the story of each attempt.

Views of jobs are made here and nowhere else: a record has what the rules need, and the rest of a
view is read for a whole page at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trellis.core.durations import to_datetime
from trellis.core.events import Event, EventKind
from trellis.core.job import Failure, Fence, JobId, JobRecord
from trellis.engines.operating import JobFacts, WorkerName
from trellis.engines.port import Engine
from trellis.insight.views import ErrorView, JobView, error_view, job_view


async def job_views(engine: Engine, records: Sequence[JobRecord]) -> list[JobView]:
    """Return the views of these jobs."""
    facts = await engine.facts([record.definition.id for record in records]) if records else {}
    return [job_view(each, facts.get(each.definition.id) or _no_facts(each)) for each in records]


async def view_of(engine: Engine, record: JobRecord) -> JobView:
    """Return the view of one job."""
    (view,) = await job_views(engine, [record])
    return view


def _no_facts(record: JobRecord) -> JobFacts:
    """Return what is known of a job that was removed since it was read."""
    definition, head = record
    changed = head.finished_at or head.claimed_at or definition.created_at
    return JobFacts(None, changed, None, None, None)


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of a job: who ran it, when, and how it ended."""

    #: Counts all attempts of the job from 1, those that were handed back too.
    claim: int
    #: Its number within the budget of attempts.
    attempt: int
    generation: int
    attempt_id: str
    worker: str | None
    worker_host: str | None
    worker_pid: int | None
    claimed_at: datetime
    #: None while it runs.
    ended_at: datetime | None
    #: The event that ended it: completed, retry, failed, dead, ...
    ended_by: EventKind | None
    error: ErrorView | None


async def attempts(engine: Engine, job_id: JobId) -> list[AttemptView]:
    """Return every attempt of a job, oldest first."""
    journal = [event for event in await engine.journal(job_id) if event.version]
    sessions = {event.fence.session for event in journal if event.fence}
    workers = await engine.identify(sorted(sessions))
    found: list[AttemptView] = []
    generation = 0
    for number, event in enumerate(journal):
        generation += event.kind is EventKind.RETRIED
        if event.kind is EventKind.STARTED and event.fence is not None:
            end = _end(journal[number + 1 :])
            worker = workers.get(event.fence.session)
            found.append(_attempt(len(found) + 1, generation, event, event.fence, end, worker))
    return found


def _end(later: Sequence[Event]) -> Event | None:
    """Return the first event after which the attempt is over: it no longer is active."""
    return next((event for event in later if event.state != "active"), None)


def _attempt(  # noqa: PLR0917 - the parts of one value
    claim: int,
    generation: int,
    start: Event,
    fence: Fence,
    end: Event | None,
    worker: WorkerName | None,
) -> AttemptView:
    error: Any = None if end is None else (end.data or {}).get("error")
    return AttemptView(
        claim,
        start.attempt,
        generation,
        fence.attempt_id,
        worker and worker.name,
        worker and worker.host,
        worker and worker.pid,
        to_datetime(start.at),
        None if end is None else to_datetime(end.at),
        None if end is None else end.kind,
        None if error is None else error_view(Failure(*error)),
    )
