"""The public values: a job, its events, log lines and outcomes, workers, keys, queues, locks.

One set for everything that reads: `JobRef`, `Operator`, the command line's `--json` and later the
server. Moments are aware datetimes, payloads and fields are plain JSON data, secrets are masked;
the functions below make them from what engines store, and only there are secrets masked. `as_json`
writes the documented document: a name in it never changes its meaning, new names may be added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, Literal

from trellis.core.durations import Instant, to_datetime
from trellis.core.events import Event, EventKind
from trellis.core.job import Failure, JobRecord
from trellis.core.states import State
from trellis.declaration.secrets import mask_value, masked
from trellis.engines.values import (
    Activity,
    KeyStatus,
    LockHolder,
    LogEntry,
    Outcome,
    QueueSettings,
    SessionRecord,
)

# -- the values ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorView:
    """Why an attempt failed; as text, its message."""

    #: A short stable word: `exception`, `timeout`, `lease_lost`, ...
    code: str
    message: str
    #: The exception's type and stack, where there was one.
    detail: str | None

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at one moment."""

    id: str
    service: str
    type: str
    queue: str
    state: State
    #: Attempts used, and how many there may be.
    attempt: int
    max_attempts: int
    priority: int
    key: str | None
    tags: Mapping[str, str]
    created_at: datetime
    #: The earliest moment at which it may start (again).
    run_at: datetime
    deadline_at: datetime | None
    #: When the running attempt was claimed.
    claimed_at: datetime | None
    finished_at: datetime | None
    #: A cancel was requested and the handler has not stopped yet.
    cancel_asked: bool
    #: The attempt was lost and still holds its key, until an operator decides.
    blocked: bool
    #: Why the latest attempt failed.
    error: ErrorView | None
    #: Secrets are masked.
    payload: Any
    #: How many times an operator ran it again, a worker claimed it, and its process crashed.
    generation: int
    claims: int
    crashes: int
    #: The running attempt, as workers log it.
    attempt_id: str | None
    request_id: str
    trace_id: str
    clone_of: str | None

    @property
    def name(self) -> str:
        """Service and type, as people write them."""
        return f"{self.service}/{self.type}"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One entry of a job's journal."""

    kind: EventKind
    #: The state after it.
    state: State
    at: datetime
    #: The version it made; 0 for a note, which changed nothing.
    version: int
    #: The number of the attempt it belongs to.
    attempt: int
    #: The attempt it belongs to, where there is one.
    attempt_id: str | None
    #: Further facts: the error of a failure, the actor and reason of a cancel, ...
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobLogLine:
    """One line of a job's log."""

    #: Counts the lines of a job.
    number: int
    at: datetime
    #: Which start of the job wrote it; 1 is the first.
    claim: int
    level: str
    message: str
    #: What was given by name: `job.log.info("sent", to=address)`.
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutcomeView:
    """How one generation of a job ended."""

    generation: int
    state: State
    attempt: int
    started_at: datetime | None
    finished_at: datetime
    #: Secrets are masked.
    result: Any
    error: ErrorView | None


@dataclass(frozen=True, slots=True)
class ProgressView:
    """What the latest attempt has reported."""

    began_at: datetime | None
    seen_at: datetime | None
    phase: str | None
    step: str | None
    current: float | None
    total: float | None
    message: str | None
    #: How many items are in each status.
    items: Mapping[str, int]


WorkerState = Literal["live", "draining", "silent", "ended"]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker process."""

    #: Its session, as 16 hex digits.
    id: str
    name: str
    host: str
    pid: int
    version: str
    #: `silent`: its lease is over, and its jobs have not been taken over yet.
    state: WorkerState
    #: The types it runs, as service/type.
    types: tuple[str, ...]
    slots: int
    #: Handlers that ran at its last heartbeat.
    busy: int
    #: Jobs it has claimed, running or not.
    held: int
    opened_at: datetime
    renewed_at: datetime
    ended_at: datetime | None

    @property
    def load(self) -> str:
        """How many of its slots are taken, as far as is known: 3/10."""
        return f"{min(max(self.busy, self.held), self.slots)}/{self.slots}"


@dataclass(frozen=True, slots=True)
class KeyView:
    """One key: the jobs that hold it, and how many wait for it."""

    service: str
    type: str
    key: str
    #: Jobs that hold a slot, oldest first.
    holders: tuple[str, ...]
    waiting: int
    #: A lost attempt holds it until an operator releases it.
    blocked: bool


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue: what operators set, and what is in it."""

    service: str
    queue: str
    paused: bool
    draining: bool
    waiting: int
    active: int


@dataclass(frozen=True, slots=True)
class LockView:
    """One lock and its holder."""

    name: str
    worker: str
    #: The job whose attempt holds it; None for a lock of the worker process itself.
    job_id: str | None
    since: datetime


# -- from what engines store ---------------------------------------------------------------------


def job_view(record: JobRecord) -> JobView:
    """Return the view of a stored job."""
    definition, head = record
    return JobView(
        id=definition.id,
        service=definition.service,
        type=definition.type,
        queue=definition.queue,
        state=head.state,
        attempt=head.attempt,
        max_attempts=definition.policy.retry.attempts,
        priority=definition.priority,
        key=definition.key,
        tags=dict(definition.tags),
        created_at=to_datetime(definition.created_at),
        run_at=to_datetime(head.run_at),
        deadline_at=_moment(definition.deadline_at),
        claimed_at=_moment(head.claimed_at),
        finished_at=_moment(head.finished_at),
        cancel_asked=head.asked_at is not None,
        blocked=head.blocked,
        error=error_view(head.error),
        payload=json.loads(masked(definition.payload, definition.policy, "payload")),
        generation=head.generation,
        claims=head.claims,
        crashes=head.crashes,
        attempt_id=None if head.fence is None else head.fence.attempt_id,
        request_id=definition.context.request_id,
        trace_id=definition.context.trace_id,
        clone_of=definition.clone_of,
    )


def error_view(error: Failure | None) -> ErrorView | None:
    """Return the view of a stored error."""
    return None if error is None else ErrorView(*error)


def job_event(event: Event) -> JobEvent:
    """Return the view of a journal entry."""
    return JobEvent(
        event.kind,
        event.state,
        to_datetime(event.at),
        event.version,
        event.attempt,
        None if event.fence is None else event.fence.attempt_id,
        mask_value(dict(event.data or {})),
    )


def job_log_line(entry: LogEntry) -> JobLogLine:
    """Return the view of a stored log line."""
    named = {} if entry.fields is None else mask_value(json.loads(entry.fields))
    at = to_datetime(entry.at)
    return JobLogLine(entry.number, at, entry.claim, entry.level, entry.message, named)


def outcome_view(outcome: Outcome, record: JobRecord) -> OutcomeView:
    """Return the view of an outcome; the job's policy says what is secret."""
    text = outcome.result
    policy = record.definition.policy
    return OutcomeView(
        outcome.generation,
        outcome.state,
        outcome.attempt,
        _moment(outcome.started_at),
        to_datetime(outcome.finished_at),
        None if text is None else json.loads(masked(text, policy, "result")),
        error_view(outcome.error),
    )


def progress_view(activity: Activity) -> ProgressView:
    """Return the view of what an attempt has reported."""
    progress = activity.progress
    items: dict[str, int] = {}
    for item in activity.items:
        items[item.status] = items.get(item.status, 0) + 1
    return ProgressView(
        _moment(activity.began_at),
        _moment(activity.seen_at),
        activity.phase,
        progress.step if progress else None,
        progress.current if progress else None,
        progress.total if progress else None,
        progress.message if progress else None,
        items,
    )


def worker_view(session: SessionRecord) -> WorkerView:
    """Return the view of a worker's session."""
    info = session.info
    details = json.loads(info.details)
    return WorkerView(
        f"{session.id:016x}",
        info.name,
        info.host,
        info.pid,
        info.version,
        _worker_state(session),
        tuple(details.get("types", ())),
        int(details.get("slots", 0)),
        session.busy,
        session.held,
        to_datetime(session.opened_at),
        to_datetime(session.renewed_at),
        _moment(session.ended_at),
    )


def _worker_state(session: SessionRecord) -> WorkerState:
    if session.ended_at is not None:
        return "ended"
    if session.lapsed:
        return "silent"
    return "draining" if session.draining else "live"


def key_view(status: KeyStatus) -> KeyView:
    """Return the view of a key."""
    return KeyView(
        status.service, status.type, status.key, status.holders, status.waiting, status.blocked
    )


def queue_view(settings: QueueSettings, waiting: int, active: int) -> QueueView:
    """Return the view of a queue."""
    return QueueView(*settings, waiting, active)


def lock_view(lock: LockHolder) -> LockView:
    """Return the view of a held lock."""
    return LockView(lock.name, lock.worker, lock.job_id, to_datetime(lock.since))


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def as_json(view: object) -> Any:  # noqa: ANN401 - the JSON edge
    """Return a view as plain data for JSON: moments as ISO 8601 in UTC."""
    if is_dataclass(view) and not isinstance(view, type):
        return {field.name: as_json(getattr(view, field.name)) for field in fields(view)}
    if isinstance(view, datetime):
        return view.isoformat().replace("+00:00", "Z")
    if isinstance(view, Mapping):
        return {name: as_json(value) for name, value in view.items()}
    if isinstance(view, list | tuple):
        return [as_json(value) for value in view]
    return view
