"""Routes about jobs: create, list, read, change."""

from __future__ import annotations

import json
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, RedirectResponse

from trellis.client.requests import CreateOptions
from trellis.core.access import MUTATE
from trellis.insight.attempts import AttemptView
from trellis.insight.filters import WORDS, Filters, add_word
from trellis.insight.views import (
    ItemView,
    JobEvent,
    JobLogLine,
    JobView,
    OutcomeView,
    ProgressView,
    job_log_line,
)
from trellis.operations.creation import create
from trellis.operations.lookup import resolve_job
from trellis.server.access import Changer, Known, Reader, below_mount, check_scope
from trellis.server.known_types import payload_errors
from trellis.server.problems import invalid

router: Final = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
_MOST: Final = 200
_LINES: Final = 1000
#: The most jobs that `offset` leaves out; `after` leads further.
_FARTHEST: Final = 10_000
#: The largest number of a row or a line.
_LARGEST: Final = 2**62
Row = Annotated[int, Query(ge=0, le=_LARGEST)]
Limit = Annotated[int, Query(ge=1, le=_MOST)]


class Submission(BaseModel):
    """A job to create."""

    model_config = ConfigDict(extra="forbid")

    #: As service/type.
    type: str = Field(pattern=r"^[^/]+/[^/]+$", examples=["shop/invoice"])
    payload: Any = None
    delay: str | None = None
    at: datetime | None = None
    priority: int | None = Field(None, ge=-4, le=4)
    queue: str | None = None
    attempts: int | None = Field(None, ge=1)
    timeout: str | None = None
    deadline: str | None = None
    dedupe: str | None = None
    tenant: str | None = None
    tags: dict[str, str] | None = None

    def options(self, idempotency_key: str | None) -> CreateOptions:
        """Return what was said about the job, as `create` takes it."""
        given = self.model_dump(exclude={"type", "payload"}, exclude_none=True)
        if idempotency_key is not None:
            given["idempotency_key"] = idempotency_key
        return cast("CreateOptions", given)


class Created(BaseModel):
    """The job that a submission led to."""

    id: str
    #: False: an earlier job with the same dedupe or idempotency key was found instead.
    is_new: bool


class Change(BaseModel):
    """Why something is changed, for the journal and the audit."""

    model_config = ConfigDict(extra="forbid")

    reason: str = ""


class Cancellation(Change):
    """How a job is cancelled."""

    #: End a running attempt at once instead of asking its handler to stop.
    force: bool = False


class Retry(Change):
    """How a job is run again."""

    failed_items: bool = False


class Adjustment(Change):
    """What is changed of a job that waits or runs."""

    queue: str | None = None
    priority: int | None = Field(None, ge=-4, le=4)
    run_at: datetime | None = None
    attempts: int | None = Field(None, ge=1)


class Reason(BaseModel):
    """One reason why a job is in its present state."""

    #: A stable word.
    code: str
    text: str
    #: The command that helps, if one does.
    command: str | None


class JobPage(BaseModel):
    """A page of jobs, the newest first."""

    entries: list[JobView]
    #: How many jobs match, on all pages together.
    count: int
    offset: int
    limit: int
    #: `offset` of the next page; new jobs move the entries. None: this is the last one.
    nextOffset: int | None  # noqa: N815 - its name in the admin API that others know
    #: `after` of the next page, which new jobs do not move; None: this is the last one.
    next: int | None


def _filter_parameter(word: str) -> dict[str, Any]:
    """Return how a filter is described."""
    return {
        "name": word,
        "in": "query",
        "required": False,
        "schema": {"type": "string", "minLength": 1},
        "description": f"As {word}: on the command line.",
    }


@router.post("", status_code=HTTPStatus.ACCEPTED, response_model=Created)
async def submit(
    body: Submission,
    request: Request,
    caller: Known,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Response:
    """Create a job of a deployed type, or of one that has had jobs; Location is where to read it.

    The payload is checked against the deployed contract of the service.
    """
    service = body.type.partition("/")[0]
    if MUTATE not in caller.scopes:
        check_scope(caller, f"submit:{service}")
    known = await request.app.state.known_types.find(body.type)
    errors = [] if body.payload is None else payload_errors(known, body.payload)
    if errors:
        return invalid(errors, "payload_invalid")
    payload = None if body.payload is None else json.dumps(body.payload)
    state, options = request.app.state, body.options(idempotency_key)
    made = await create(state.operator.engine, known.job_type, payload, options, state.batcher)
    # Not by name from all routes, and not through the model: both take as long as the creation.
    return JSONResponse(
        {"id": made.job_id, "is_new": made.is_new},
        HTTPStatus.ACCEPTED,
        {"Location": below_mount(request, f"{router.prefix}/{made.job_id}")},
    )


@router.get("", openapi_extra={"parameters": [_filter_parameter(each) for each in WORDS]})
async def list_jobs(
    request: Request,
    jobs: Reader,
    after: Row | None = None,
    offset: Annotated[int, Query(ge=0, le=_FARTHEST)] = 0,
    limit: Limit = 50,
) -> JobPage:
    """List jobs; every filter word of the command line is a parameter, such as state=failed."""
    found = jobs.find(**_filters(request))
    page = await found.page(after=after, limit=limit, offset=offset)
    following = None if page.next_after is None else offset + limit
    return JobPage(
        entries=list(page.jobs),
        count=await found.count(),
        offset=offset,
        limit=limit,
        nextOffset=following,
        next=page.next_after,
    )


def _filters(request: Request) -> Filters:
    words: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name not in {"after", "offset", "limit"}:
            add_word(words, name.replace("-", "_"), value)
    return cast("Filters", words)


@router.get("/{job_id}", name="get_job")
async def get_job(job_id: str, jobs: Reader) -> JobView:
    """Return a job; the beginning or end of its id is enough while it is unique."""
    return await jobs.get(job_id)


@router.get("/{job_id}/journal")
async def journal(job_id: str, jobs: Reader) -> list[JobEvent]:
    """Return what happened to a job, oldest first."""
    return await jobs.journal(job_id)


@router.get("/{job_id}/attempts")
async def attempts(job_id: str, jobs: Reader) -> list[AttemptView]:
    """Return the attempts of a job, oldest first."""
    return await jobs.attempts(job_id)


@router.get("/{job_id}/items")
async def items(job_id: str, jobs: Reader, *, all_attempts: bool = False) -> list[ItemView]:
    """Return the items that the handler of a job has reported."""
    return await jobs.items(job_id, all_attempts=all_attempts)


@router.get("/{job_id}/progress")
async def progress(job_id: str, jobs: Reader) -> ProgressView | None:
    """Return what the latest attempt has reported; null if it has reported nothing."""
    return await jobs.progress(job_id)


@router.get("/{job_id}/outcomes")
async def outcomes(job_id: str, jobs: Reader) -> list[OutcomeView]:
    """Return how each generation of a job ended, oldest first."""
    return await jobs.outcomes(job_id)


@router.get(
    "/{job_id}/logs",
    response_model=list[JobLogLine],
    responses={303: {"description": "Where new lines are streamed, with follow."}},
)
async def logs(
    job_id: str,
    jobs: Reader,
    *,
    after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=_LINES)] = _LINES,
    follow: bool = False,
) -> list[JobLogLine] | Response:
    """Return log lines of a job with numbers above `after`, oldest first."""
    whole = (await resolve_job(jobs.engine, job_id)).definition.id
    if follow:
        query = f"jobs={whole}&events=logs"
        return RedirectResponse(f"../../stream?{query}", HTTPStatus.SEE_OTHER)
    return [job_log_line(each) for each in await jobs.engine.logs(whole, after, limit)]


@router.get("/{job_id}/why")
async def why(job_id: str, jobs: Reader) -> list[Reason]:
    """Explain why a job does not run, the most important cause first."""
    return [Reason(**each._asdict()) for each in (await jobs.why(job_id)).causes]


@router.post("/{job_id}/cancel")
async def cancel(job_id: str, jobs: Changer, body: Cancellation | None = None) -> JobView:
    """Stop a job: at once while it waits; while it runs, its handler is asked to stop."""
    given = body or Cancellation()
    return await jobs.cancel(job_id, given.reason, force=given.force)


@router.post("/{job_id}/retry")
async def retry(job_id: str, jobs: Changer, body: Retry | None = None) -> JobView:
    """Run a failed job again, or only its failed items."""
    given = body or Retry()
    return await jobs.retry(job_id, failed_items=given.failed_items, reason=given.reason)


@router.post("/{job_id}/replay")
async def replay(job_id: str, jobs: Changer, body: Change | None = None) -> JobView:
    """Run a dead letter again."""
    return await jobs.replay(job_id, reason=(body or Change()).reason)


@router.post("/{job_id}/dismiss")
async def dismiss(job_id: str, jobs: Changer, body: Change | None = None) -> JobView:
    """Close a dead letter for good."""
    return await jobs.dismiss(job_id, reason=(body or Change()).reason)


@router.post("/{job_id}/clone", status_code=HTTPStatus.CREATED)
async def clone(job_id: str, jobs: Changer, body: Change | None = None) -> JobView:
    """Create a new job from the definition of another one."""
    return await jobs.clone(job_id, reason=(body or Change()).reason)


@router.patch("/{job_id}")
async def adjust(job_id: str, jobs: Changer, body: Adjustment) -> JobView:
    """Change queue, priority, due time or attempts of a job that waits or runs."""
    return await jobs.adjust(job_id, **cast("Any", body.model_dump(exclude_none=True)))


@router.delete("/{job_id}", status_code=HTTPStatus.NO_CONTENT)
async def delete(job_id: str, jobs: Changer, reason: str = "") -> None:
    """Remove an ended job at once."""
    await jobs.delete(job_id, reason=reason)
