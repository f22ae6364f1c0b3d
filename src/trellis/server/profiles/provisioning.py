"""Workers that only speak HTTP: they claim jobs, report status and logs, and send heartbeats.

A worker in any language needs `POST /api/jobs/claim`, `PUT /api/jobs/{id}/status` and a heartbeat.
The answer to a claim has an `attempt_id`, which every report about the attempt must carry, together
with the id of the worker. See `docs/guides/any-language.md`.
"""

from __future__ import annotations

import json
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.exceptions import HTTPException

from trellis.core.commands import Complete, Fail, FencedCommand, Release
from trellis.core.durations import SECOND, to_datetime
from trellis.core.job import Failure, Fence, JobRecord
from trellis.core.json_text import dump_json
from trellis.core.state_words import PROVISIONING
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Heartbeat, LogLine, NoteBody, Phase, Progress
from trellis.insight.attempts import view_of
from trellis.insight.views import JobLogLine, JobView
from trellis.insight.worker_views import WorkerState, WorkerView
from trellis.server.access import Caller, Reader, caller_of
from trellis.server.profiles.attempt_log import AttemptLogs
from trellis.server.profiles.http_worker import ATTEMPT_ID, LEASE, HttpWorker, read_fence
from trellis.server.profiles.texts import Short, Storable, Text

router: Final = APIRouter(prefix="/api", tags=["provisioning"])
_MOST_LINES: Final = 500
_FIELDS_LIMIT: Final = 16_384
WORKER_WORDS: Final[dict[WorkerState, str]] = {
    "live": "ONLINE",
    "draining": "DRAINING",
    "silent": "SILENT",
    "offline": "OFFLINE",
    "ended": "ENDED",
}


WorkerId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}$")]
WorkerPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}$")]
AttemptId = Annotated[str, Field(pattern=ATTEMPT_ID)]
TypeName = Annotated[str, Field(pattern=r"^[^/]+/[^/]+$", max_length=200), Storable]
Number = Annotated[float, Field(allow_inf_nan=False)]


class NeedsWorker:
    """A dependency of a route: a caller that may work for a service."""

    #: Read by the test that lists routes and scopes.
    kind = "worker"

    async def __call__(self, request: Request) -> Caller:
        """Return the caller; raise 401 or 403."""
        caller = await caller_of(request)
        if not any(scope.startswith(f"{self.kind}:") for scope in caller.scopes):
            raise HTTPException(
                HTTPStatus.FORBIDDEN, "This needs a token with the scope worker:SERVICE."
            )
        return caller


Working = Annotated[Caller, Depends(NeedsWorker())]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ClaimRequest(_Body):
    """A worker that has time for a job."""

    worker_id: WorkerId
    #: The types it runs, as service/type; without any: all types of the services of its token.
    types: list[TypeName] = Field(default_factory=list, max_length=100)
    #: Only jobs that wait in these queues.
    queues: list[Short] = Field(default_factory=list, max_length=100)
    #: The attempts that it runs already.
    attempts: list[AttemptId] = Field(default_factory=list, max_length=1000)


class ClaimedJob(BaseModel):
    """A job to run."""

    id: str
    #: The fence of this attempt: every report must carry it.
    attempt_id: str
    worker_id: str
    status: str
    service: str
    type: str
    queue: str
    #: Nothing is masked.
    payload: Any
    schema_version: int
    #: The configuration with which the job was created, and the fingerprint that it must have.
    config_snapshot: Any
    plan_hash: str | None
    attempt: int
    max_attempts: int
    cancel_requested: bool
    created_at: datetime
    claimed_at: datetime | None
    deadline_at: datetime | None
    #: The timeout of the attempt.
    timeout_seconds: float | None
    #: Without a heartbeat within this time the job is taken from the worker.
    lease_seconds: float
    traceparent: str


class Report(_Body):
    """What a worker reports about an attempt."""

    worker_id: WorkerId
    attempt_id: AttemptId


class ProgressReport(_Body):
    """How far an attempt is."""

    current: Number | None = None
    total: Number | None = None
    step: Short | None = None
    message: Text | None = None


class StatusReport(Report):
    """The status of an attempt."""

    #: PROCESSING: the work has begun or goes on; QUEUED: the worker hands the job back.
    status: Literal["PROCESSING", "SUCCESS", "FAILED", "CANCELLED", "QUEUED"]
    #: SUCCESS: the result; FAILED: facts about the error.
    metadata: JsonValue = None
    #: FAILED or CANCELLED: why; `detail` may have the output of a program.
    error: Annotated[str, Field(max_length=2048), Storable] | None = None
    detail: Text | None = None
    #: FAILED: a short stable word, and whether the retry policy of the type applies.
    code: str = Field("failed", pattern=r"^[a-z][a-z0-9_]{0,63}$")
    retryable: bool = True
    phase: Short | None = None
    progress: ProgressReport | None = None


class LogLineReport(_Body):
    """One line."""

    message: Text
    level: Literal["debug", "info", "warning", "error"] = "info"
    fields: dict[str, JsonValue] | None = None


class LogReport(Report):
    """Lines for the log of a job."""

    lines: list[LogLineReport] = Field(min_length=1, max_length=_MOST_LINES)


class Stored(BaseModel):
    """How much of a report was stored."""

    stored: int
    #: Lines above the number that an attempt keeps.
    dropped: int = 0


class JobResource(BaseModel):
    """A job in the words of this profile."""

    id: str
    service: str
    type: str
    status: str
    worker_id: str | None
    attempt: int
    max_attempts: int
    cancel_requested: bool
    #: Secrets are masked.
    payload: Any
    config_snapshot: Any
    plan_hash: str | None
    metadata: Any
    error: str | None
    created_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


class FirstHeartbeat(_Body):
    """What a worker says of itself with its first heartbeat."""

    types: list[TypeName] = Field(default_factory=list, max_length=100)


class HeldJob(BaseModel):
    """A job that a worker holds."""

    id: str
    attempt_id: str
    cancel_requested: bool


class HeartbeatAnswer(BaseModel):
    """What the server knows of a worker."""

    worker_id: str
    status: str
    lease_seconds: float
    #: What it holds; a job that is missing here was taken from it.
    jobs: list[HeldJob]


class WorkerResource(BaseModel):
    """A worker in the words of this profile."""

    id: str
    session: str
    status: str
    types: list[str]
    jobs: int
    last_heartbeat: datetime


# -- for workers ---------------------------------------------------------------------------------


@router.post(
    "/jobs/claim",
    responses={HTTPStatus.NO_CONTENT: {"description": "No job is due."}},
    response_model=ClaimedJob,
)
async def claim(body: ClaimRequest, request: Request, caller: Working) -> ClaimedJob | Response:
    """Claim a job; 204 without a body if none is due. Counts as a heartbeat."""
    worker = HttpWorker(_engine(request), caller, body.worker_id)
    running = [fence for fence in map(read_fence, body.attempts) if fence is not None]
    record = await worker.claim(body.types, body.queues, running)
    if record is None or record.head.fence is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return _claimed(record, record.head.fence, worker.id)


@router.put("/jobs/{job_id}/status")
async def report_status(
    job_id: str, body: StatusReport, request: Request, caller: Working
) -> JobResource:
    """Report that an attempt goes on, or how it ended; repeating a report is safe."""
    engine = _engine(request)
    worker = HttpWorker(engine, caller, body.worker_id)
    metadata = None if body.metadata is None else dump_json(body.metadata, "metadata")
    attempt = await worker.attempt(job_id, body.attempt_id)
    is_live = attempt.record.head.fence == attempt.fence
    if is_live or body.status == "PROCESSING":
        await attempt.note(*_notes(body))
    if body.status == "PROCESSING":
        await attempt.begin()
        return _resource(await view_of(engine, attempt.record), begun=True)
    began_at = await attempt.began_at() if is_live else None
    record = await attempt.settle(_command(body, attempt.fence, metadata, began_at))
    return _resource(await view_of(engine, record))


@router.post("/jobs/{job_id}/logs")
async def add_logs(job_id: str, body: LogReport, request: Request, caller: Working) -> Stored:
    """Add lines to the log of a job; an attempt keeps 5,000 of them."""
    lines = [
        LogLine(each.level, each.message,
                dump_json(each.fields, "line", _FIELDS_LIMIT) if each.fields else None)
        for each in body.lines
    ]  # fmt: skip
    worker = HttpWorker(_engine(request), caller, body.worker_id)
    attempt = await worker.attempt(job_id, body.attempt_id)
    logs: AttemptLogs = request.app.state.attempt_logs
    kept, dropped = await logs.limited(attempt.record, attempt.fence, lines)
    await attempt.note(*kept, *([] if kept else [Heartbeat()]))
    return Stored(stored=len(lines) - dropped, dropped=dropped)


@router.post("/workers/{worker_id}/heartbeat")
async def heartbeat(
    worker_id: WorkerPath, request: Request, caller: Working, body: FirstHeartbeat | None = None
) -> HeartbeatAnswer:
    """Renew the lease of all jobs of a worker; the answer says which it holds."""
    worker = HttpWorker(_engine(request), caller, worker_id)
    known = await worker.renew((body or FirstHeartbeat()).types)
    return HeartbeatAnswer(
        worker_id=worker_id,
        status=WORKER_WORDS["draining" if known.is_draining else "live"],
        lease_seconds=LEASE / SECOND,
        jobs=[
            HeldJob(
                id=record.definition.id,
                attempt_id=record.head.fence.attempt_id,
                cancel_requested=record.head.asked_at is not None,
            )
            for record in known.unnamed
            if record.head.fence is not None
        ],
    )


@router.delete("/workers/{worker_id}", status_code=HTTPStatus.NO_CONTENT)
async def sign_off(worker_id: WorkerPath, request: Request, caller: Working) -> None:
    """End the session of a worker that stops; what it holds is handed back."""
    await HttpWorker(_engine(request), caller, worker_id).leave()


# -- for operators -------------------------------------------------------------------------------


@router.get("/jobs/{job_id}")
async def get_provisioning_job(job_id: str, jobs: Reader) -> JobResource:
    """Return a job."""
    return _resource(await jobs.get(job_id))


@router.get("/jobs/{job_id}/logs")
async def get_provisioning_logs(job_id: str, jobs: Reader) -> list[JobLogLine]:
    """Return the log lines of a job, oldest first."""
    return [line async for line in jobs.logs(job_id)]


@router.get("/workers")
async def list_workers(jobs: Reader) -> list[WorkerResource]:
    """List workers; one that was not heard of for 60 seconds is OFFLINE."""
    return [_worker(each) for each in await jobs.workers()]


# -- shapes --------------------------------------------------------------------------------------


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.operator.engine
    return engine


def _notes(body: StatusReport) -> list[NoteBody]:
    notes: list[NoteBody] = [] if body.phase is None else [Phase(body.phase)]
    if body.progress is not None:
        notes.append(Progress(**body.progress.model_dump()))
    return notes or [Heartbeat()]


def _command(
    body: StatusReport, fence: Fence, metadata: str | None, started_at: int | None
) -> FencedCommand:
    error = body.error or f"The worker reported {body.status}."
    match body.status:
        case "SUCCESS":
            return Complete(fence, metadata, 0, started_at)
        case "FAILED":
            failure = Failure(body.code, error, body.detail, metadata)
            return Fail(fence, failure, retryable=body.retryable, started_at=started_at)
        case "CANCELLED":
            failure = Failure("cancelled", error, body.detail)
            return Fail(fence, failure, cancelled=True, started_at=started_at)
        case _:
            return Release(fence, begun=started_at is not None, started_at=started_at)


def _claimed(record: JobRecord, fence: Fence, worker_id: str) -> ClaimedJob:
    (definition, head), policy = record, record.definition.policy
    deadline, claimed_at = definition.deadline_at, head.claimed_at
    return ClaimedJob(
        id=definition.id,
        attempt_id=fence.attempt_id,
        worker_id=worker_id,
        status=PROVISIONING.word(State.ACTIVE),
        service=definition.service,
        type=definition.type,
        queue=definition.queue,
        payload=json.loads(definition.payload),
        schema_version=definition.schema_version,
        config_snapshot=None if definition.config is None else json.loads(definition.config),
        plan_hash=definition.expect,
        attempt=head.attempt,
        max_attempts=policy.retry.attempts,
        cancel_requested=head.asked_at is not None,
        created_at=to_datetime(definition.created_at),
        claimed_at=None if claimed_at is None else to_datetime(claimed_at),
        deadline_at=None if deadline is None else to_datetime(deadline),
        timeout_seconds=None if policy.timeout is None else policy.timeout / SECOND,
        lease_seconds=LEASE / SECOND,
        traceparent=definition.context.traceparent,
    )


def _resource(job: JobView, *, begun: bool = False) -> JobResource:
    return JobResource(
        id=job.id,
        service=job.service,
        type=job.type,
        status=PROVISIONING.word(job.state, begun=begun or job.started_at is not None),
        worker_id=job.worker,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        cancel_requested=job.cancel_asked,
        payload=job.payload,
        config_snapshot=job.config,
        plan_hash=job.expect,
        metadata=job.result if job.error is None else job.error.data,
        error=None if job.error is None else job.error.message,
        created_at=job.created_at,
        claimed_at=job.claimed_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


def _worker(worker: WorkerView) -> WorkerResource:
    return WorkerResource(
        id=worker.name,
        session=worker.id,
        status=WORKER_WORDS[worker.state],
        types=list(worker.types),
        jobs=worker.held,
        last_heartbeat=worker.renewed_at,
    )
