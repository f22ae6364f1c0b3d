"""A whole job, as an archiver gets it before the job is removed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from trellis.core.durations import to_datetime
from trellis.core.job import JobRecord
from trellis.engines.archive import ArchiveState
from trellis.engines.port import Engine
from trellis.insight.attempts import job_views
from trellis.insight.views import (
    ItemView,
    JobEvent,
    JobView,
    OutcomeView,
    item_views,
    job_event,
    outcome_view,
)


@dataclass(frozen=True, slots=True)
class ArchivedJob:
    """An ended job with everything that is kept about it, except its log."""

    job: JobView
    #: How each generation ended, oldest first.
    outcomes: tuple[OutcomeView, ...]
    #: The journal, oldest first.
    events: tuple[JobEvent, ...]
    #: The items of all attempts.
    items: tuple[ItemView, ...]


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """The archive of one service."""

    service: str
    on: bool
    #: When it was switched on or off.
    since: datetime
    #: Since when the first expired job waits for it.
    waiting_since: datetime | None
    #: Since when its archiver fails, how often it did, and why.
    failing_since: datetime | None
    failures: int
    error: str | None


def archive_view(state: ArchiveState) -> ArchiveView:
    """Return the view of an archive."""
    waiting, failing = state.waiting_since, state.failing_since
    return ArchiveView(
        state.service,
        state.is_on,
        to_datetime(state.since),
        None if waiting is None else to_datetime(waiting),
        None if failing is None else to_datetime(failing),
        state.failures,
        state.error,
    )


async def archived_jobs(
    engine: Engine, records: Sequence[JobRecord], *, secrets: bool
) -> list[ArchivedJob]:
    """Return these jobs whole; secrets are masked unless they are asked for."""
    views = await job_views(engine, records)
    found = []
    for record, view in zip(records, views, strict=True):
        job_id = record.definition.id
        outcomes = await engine.outcomes(job_id)
        job = view
        shown = [outcome_view(each, record) for each in outcomes]
        if secrets:
            results = [
                None if each.result is None else json.loads(each.result) for each in outcomes
            ]
            job = replace(
                view,
                payload=json.loads(record.definition.payload),
                result=results[-1] if results else None,
            )
            shown = [
                replace(each, result=result) for each, result in zip(shown, results, strict=True)
            ]
        events = [job_event(each) for each in await engine.journal(job_id)]
        items = item_views(await engine.items(job_id), record.head, all_attempts=True)
        found.append(ArchivedJob(job, tuple(shown), tuple(events), tuple(items)))
    return found
