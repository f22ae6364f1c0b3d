"""Jobs with phases and items: one resource with the progress of a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel

from trellis.core.state_words import DOCS_PUBLISHING
from trellis.insight.views import ItemView, ProgressView
from trellis.server.access import Reader

router: Final = APIRouter(prefix="/queue", tags=["docs publishing"])
#: How the items are called in a job that names no phase.
_ITEMS: Final = "items"


class QueueJob(BaseModel):
    """A job in the words of this profile."""

    id: str
    backend_job_id: str
    kind: str
    status: str
    phase: str | None
    #: The items of the present phase, named after it, or what the handler said about its progress.
    progress: dict[str, Any] | None
    errors: list[dict[str, Any]] | None
    date_created: datetime
    date_started: datetime | None
    date_completed: datetime | None


@router.get("/jobs/{job_id}")
async def get_queue_job(job_id: str, jobs: Reader) -> QueueJob:
    """Return a job with its progress; 404 once retention has removed it."""
    job = await jobs.get(job_id)
    progress = await jobs.progress(job.id)
    items = await jobs.items(job.id)
    error = job.error
    return QueueJob(
        id=job.id,
        backend_job_id=job.id,
        kind=job.type,
        status=DOCS_PUBLISHING.word(job.state),
        phase=None if progress is None else progress.phase,
        progress=None if progress is None else _progress(progress, items),
        errors=None if error is None else [{"code": error.code, "message": error.message}],
        date_created=job.created_at,
        date_started=job.started_at or job.claimed_at,
        date_completed=job.finished_at,
    )


def _progress(progress: ProgressView, items: Sequence[ItemView]) -> dict[str, Any] | None:
    said = {name: getattr(progress, name) for name in ("message", "step", "current", "total")}
    found: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    phase = progress.phase or ""
    current = [item for item in items if item.phase == phase]
    if current:
        found |= _items(phase or _ITEMS, current)
    return found or None


def _items(phase: str, items: Sequence[ItemView]) -> dict[str, Any]:
    def named(*statuses: str) -> list[str]:
        return [item.name for item in items if item.status in statuses]

    def explained(status: str, word: str) -> list[dict[str, Any]]:
        return [{"slug": item.name, word: item.detail} for item in items if item.status == status]

    return {
        f"{phase}_total": len(items),
        f"{phase}_completed": named("completed"),
        f"{phase}_skipped": explained("skipped", "reason"),
        f"{phase}_failed": explained("failed", "error"),
        f"{phase}_in_progress": named("in_progress", "pending"),
    }
