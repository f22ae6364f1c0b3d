"""A list of recent jobs by status, to look at repeated failures."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel

from trellis.core.state_words import AGENT_ORCHESTRATION
from trellis.insight.filters import Filters
from trellis.insight.views import JobView
from trellis.server.access import Reader
from trellis.server.jobs import Limit
from trellis.server.profiles.texts import Short

router: Final = APIRouter(prefix="/v1", tags=["agent orchestration"])


class RecentJob(BaseModel):
    """A job in the words of this profile."""

    id: str
    kind: str
    status: str
    #: Secrets are masked.
    payload: Any
    dedupeKey: str | None  # noqa: N815 - the words of this profile
    runAt: datetime  # noqa: N815
    attempts: int
    maxAttempts: int  # noqa: N815
    lockedBy: str | None  # noqa: N815
    result: Any
    error: str | None
    createdAt: datetime  # noqa: N815
    updatedAt: datetime  # noqa: N815


class RecentJobs(BaseModel):
    """Jobs, the newest first."""

    jobs: list[RecentJob]


@router.get("/jobs")
async def list_recent_jobs(
    jobs: Reader,
    status: str | None = None,
    kind: Annotated[list[Short] | None, Query()] = None,
    limit: Limit = 20,
) -> RecentJobs:
    """List jobs of a status, the newest first; `failed` includes those without attempts left."""
    filters: Filters = {}
    if status is not None:
        filters["state"] = AGENT_ORCHESTRATION.states(status)
    if kind:
        filters["type"] = kind
    page = await jobs.find(**filters).page(limit=limit)
    return RecentJobs(jobs=[_recent(each) for each in page.jobs])


def _recent(job: JobView) -> RecentJob:
    return RecentJob(
        id=job.id,
        kind=job.type,
        status=AGENT_ORCHESTRATION.word(job.state),
        payload=job.payload,
        dedupeKey=job.dedupe,
        runAt=job.run_at,
        attempts=job.attempt,
        maxAttempts=job.max_attempts,
        lockedBy=job.worker if job.attempt_id else None,
        result=job.result,
        error=None if job.error is None else job.error.message,
        createdAt=job.created_at,
        updatedAt=job.updated_at,
    )
