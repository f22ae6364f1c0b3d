"""Jobs that lock a table: submit one for a table, read its status, refuse new ones.

The job is of the type `maintenance`, with the payload `{"db", "table", "actions"}`. A service that
declares it with `PerKey("table/{db}/{table}", hold="job")` has one job for a table at a time: a
second one is refused with 409, which names the first.
"""

from __future__ import annotations

import json
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from trellis.client.requests import CreateOptions
from trellis.core.access import MUTATE
from trellis.core.state_words import TABLE_MAINTENANCE
from trellis.core.states import State
from trellis.errors import JobNotFound
from trellis.operations.creation import create
from trellis.server.access import Caller, Changer, Reader, caller_of, check_scope, path_of
from trellis.server.profiles.texts import Short, Storable, Text

router: Final = APIRouter(prefix="/tables", tags=["table maintenance"])
#: The service that has the type, unless the request names another.
SERVICE: Final = "table_maintenance"
TYPE: Final = "maintenance"
Named = Annotated[str, Query(pattern=r"^[^/]+$", max_length=200), Storable]


class NeedsSubmit:
    """A dependency of a route: a caller that may create jobs of the service it names."""

    async def __call__(self, request: Request) -> Caller:
        """Return the caller; raise 401 or 403."""
        caller = await caller_of(request)
        if MUTATE not in caller.scopes:
            check_scope(caller, f"submit:{request.query_params.get('service', SERVICE)}")
        return caller


class MaintenanceRequest(BaseModel):
    """What to do with a table."""

    model_config = ConfigDict(extra="forbid")

    actions: list[Short] = Field(min_length=1, max_length=100)


class SubmittedJob(BaseModel):
    """The job that a request led to."""

    job_id: str
    status: str


class MaintenanceJob(BaseModel):
    """A job in the words of this profile."""

    job_id: str
    db: str
    table: str
    actions: list[Any]
    status: str
    #: The running attempt.
    attempt_id: str | None
    attempt_count: int
    claimed_by: str | None
    claimed_at: datetime | None
    visible_at: datetime
    error: str | None
    results: Any
    created_at: datetime
    finished_at: datetime | None


class DrainMode(BaseModel):
    """Whether new jobs are refused."""

    model_config = ConfigDict(extra="forbid")

    drain_mode: bool
    reason: Text = ""


@router.post(
    "/{db}/{table}/maintenance",
    status_code=HTTPStatus.ACCEPTED,
    dependencies=[Depends(NeedsSubmit())],
)
async def submit_maintenance(
    db: str,
    table: str,
    body: MaintenanceRequest,
    request: Request,
    response: Response,
    *,
    service: Named = SERVICE,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> SubmittedJob:
    """Create a job for a table; 409 while another one has the table, 503 while draining."""
    known = await request.app.state.known_types.find(f"{service}/{TYPE}")
    payload = json.dumps({"db": db, "table": table, "actions": body.actions})
    options: CreateOptions = {}
    if idempotency_key is not None:
        options["idempotency_key"] = idempotency_key
    made = await create(request.app.state.operator.engine, known.job_type, payload, options)
    names = {"db": quote(db, safe=""), "table": quote(table, safe="")}
    where = path_of(request, "get_maintenance", **names, job_id=made.job_id)
    response.headers["Location"] = where
    return SubmittedJob(job_id=made.job_id, status=TABLE_MAINTENANCE.word(State.PENDING))


@router.get("/{db}/{table}/maintenance/{job_id}", name="get_maintenance")
async def get_maintenance(db: str, table: str, job_id: str, jobs: Reader) -> MaintenanceJob:
    """Return a job of a table."""
    job = await jobs.get(job_id)
    payload = job.payload if job.type == TYPE and isinstance(job.payload, dict) else {}
    if (payload.get("db"), payload.get("table")) != (db, table):
        raise JobNotFound(f"Table {db}.{table} has no job {job_id}.", job_id=job_id)
    return MaintenanceJob(
        job_id=job.id,
        db=db,
        table=table,
        actions=payload.get("actions", []),
        status=TABLE_MAINTENANCE.word(job.state),
        attempt_id=job.attempt_id,
        attempt_count=job.attempt,
        claimed_by=job.worker,
        claimed_at=job.claimed_at,
        visible_at=job.run_at,
        error=None if job.error is None else job.error.message,
        results=job.result,
        created_at=job.created_at,
        finished_at=job.finished_at,
    )


@router.get("/drain")
async def get_drain_mode(jobs: Reader) -> DrainMode:
    """Return whether new jobs are refused everywhere."""
    latest = (await jobs.drain_history(1))[:1]
    return DrainMode(
        drain_mode=any(each.on for each in latest),
        reason="".join(each.reason or "" for each in latest),
    )


@router.put("/drain")
async def set_drain_mode(body: DrainMode, jobs: Changer) -> DrainMode:
    """Refuse new jobs everywhere, or accept them again; jobs that are there still run."""
    await (jobs.drain_all(body.reason) if body.drain_mode else jobs.accept_all(body.reason))
    return body
