"""The public values: a job, its events, log lines and outcomes.

One set for everything that reads: `JobRef`, `Operator`, the command line's `--json` and later the
server. Moments are aware datetimes, payloads and fields are plain JSON data, secrets are masked;
the functions below make them from what engines store, and only there are secrets masked. `as_json`
writes the documented document: a name in it never changes its meaning, new names may be added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, Final

from trellis.core.durations import Instant, to_datetime
from trellis.core.events import Event, EventKind
from trellis.core.items import ItemStatus
from trellis.core.job import Dedupe, DedupeWhile, Failure, Head, JobRecord, Relations
from trellis.core.states import State
from trellis.declaration.fingerprint import fingerprint
from trellis.declaration.secrets import MASK, mask_value, masked
from trellis.engines.operating import JobFacts
from trellis.engines.values import (
    Activity,
    ItemEntry,
    LogEntry,
    Outcome,
)
from trellis.insight.policies import PolicyValue, policy_values

# -- the values ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorView:
    """Why an attempt failed; as text, its message."""

    #: A short stable word: `exception`, `timeout`, `lease_lost`, ...
    code: str
    message: str
    #: The exception's type and stack, where there was one.
    detail: str | None
    #: What the handler gave: `raise Fail("no such order", data={"order": 7})`; secrets are masked.
    data: Any = None

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
    #: The dedupe key it was created with, and how long it holds: while the job is `pending` or
    #: `unfinished`, and until a moment.
    dedupe: str | None
    dedupe_while: DedupeWhile | None
    dedupe_until: datetime | None
    #: The tenant whose share of the queue it uses.
    tenant: str | None
    tags: Mapping[str, str]
    created_at: datetime
    #: The earliest moment at which it may start (again).
    run_at: datetime
    deadline_at: datetime | None
    #: When the running attempt was claimed.
    claimed_at: datetime | None
    #: When the handler of the latest attempt began, as far as that is stored.
    started_at: datetime | None
    finished_at: datetime | None
    #: When the job last changed.
    updated_at: datetime
    #: A cancel was requested and the handler has not stopped yet.
    cancel_asked: bool
    #: The attempt was lost and still holds its key, until an operator decides.
    blocked: bool
    #: Why the latest attempt failed.
    error: ErrorView | None
    #: Secrets are masked.
    payload: Any
    #: What the handler of an ended job returned; secrets are masked.
    result: Any
    #: The name of the worker process that has, or had, the latest attempt; its host and pid.
    worker: str | None
    worker_host: str | None
    worker_pid: int | None
    #: How many times an operator ran it again, a worker claimed it, and its process crashed.
    generation: int
    claims: int
    crashes: int
    #: The running attempt, as workers log it.
    attempt_id: str | None
    request_id: str
    trace_id: str
    clone_of: str | None
    #: The schedule that created it, and its slot; no slot if an operator ran the schedule.
    schedule: str | None
    slot: datetime | None
    #: The configuration it was created with, secrets masked, and its fingerprint; None also where a
    #: server has masked secrets in it, as for an operator with an `https://` URL.
    config: Any
    config_fingerprint: str | None
    #: The fingerprint that the present configuration must have when its handler is called.
    expect: str | None
    #: The policy in force, and where each value comes from.
    policy: tuple[PolicyValue, ...]
    #: The job in whose handler, or at whose end, it was created.
    parent: str | None = None
    #: The batch of which it is a member, and the batch that it follows as its fan-in job.
    batch: str | None = None
    fan_in_of: str | None = None

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
    #: Further facts: the error of a failure, the actor and reason of a cancel, ...; `run_at` is a
    #: datetime, `error` has the names of `ErrorView`.
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


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item of a job, as an attempt last reported it."""

    name: str
    status: ItemStatus
    #: What the handler said about it; of a failed item, the error.
    detail: str | None
    #: The phase of the job it belongs to; empty if the handler has named none.
    phase: str
    #: Which start of the job reported it; 1 is the first.
    claim: int


# -- from what engines store ---------------------------------------------------------------------

_NO_DEDUPE: Final = Dedupe("", None)
_NO_RELATIONS: Final = Relations()


def job_view(record: JobRecord, facts: JobFacts) -> JobView:
    """Return the view of a stored job."""
    (definition, head), worker, config = record, facts.worker, record.definition.config
    dedupe, relations = definition.dedupe or _NO_DEDUPE, definition.relations or _NO_RELATIONS
    return JobView(
        **_relation_values(relations),
        id=definition.id,
        service=definition.service,
        type=definition.type,
        queue=definition.queue,
        state=head.state,
        attempt=head.attempt,
        max_attempts=definition.policy.retry.attempts,
        priority=definition.priority,
        key=definition.key,
        dedupe=dedupe.key or None,
        dedupe_while=dedupe.during,
        dedupe_until=_moment(dedupe.period and definition.created_at + dedupe.period),
        tags=dict(definition.tags),
        created_at=to_datetime(definition.created_at),
        run_at=to_datetime(head.run_at),
        deadline_at=_moment(definition.deadline_at),
        claimed_at=_moment(head.claimed_at),
        started_at=_moment(facts.started_at),
        finished_at=_moment(head.finished_at),
        updated_at=to_datetime(facts.updated_at),
        cancel_asked=head.asked_at is not None,
        blocked=head.blocked,
        error=error_view(head.error),
        payload=json.loads(masked(definition.payload, definition.policy, "payload")),
        result=_result(facts.result, record),
        worker=worker and worker.name,
        worker_host=worker and worker.host,
        worker_pid=worker and worker.pid,
        generation=head.generation,
        claims=head.claims,
        crashes=head.crashes,
        attempt_id=None if head.fence is None else head.fence.attempt_id,
        request_id=definition.context.request_id,
        trace_id=definition.context.trace_id,
        clone_of=definition.clone_of,
        config=config and json.loads(masked(config, definition.policy, "config")),
        config_fingerprint=config and known_fingerprint(config),
        expect=definition.expect,
        policy=policy_values(record),
    )


def _relation_values(relations: Relations) -> dict[str, Any]:
    shown = ("parent", "batch", "fan_in_of", "schedule", "tenant")
    return {name: getattr(relations, name) for name in shown} | {"slot": _moment(relations.slot)}


def known_fingerprint(config: str) -> str | None:
    """Return the fingerprint of a configuration; None: secrets in it were masked by a server."""
    return None if f'"{MASK}"' in config else fingerprint(json.loads(config))


def error_view(error: Failure | None) -> ErrorView | None:
    """Return the view of a stored error."""
    if error is None:
        return None
    data = None if error.data is None else mask_value(json.loads(error.data))
    return ErrorView(error.code, error.message, error.detail, data)


def job_event(event: Event) -> JobEvent:
    """Return the view of a journal entry."""
    data: dict[str, Any] = mask_value(dict(event.data or {}))
    if "run_at" in data:
        data["run_at"] = to_datetime(data["run_at"])
    if "error" in data:
        data["error"] = error_view(Failure(*data["error"]))
    return JobEvent(
        event.kind,
        event.state,
        to_datetime(event.at),
        event.version,
        event.attempt,
        None if event.fence is None else event.fence.attempt_id,
        data,
    )


def job_log_line(entry: LogEntry) -> JobLogLine:
    """Return the view of a stored log line."""
    named = {} if entry.fields is None else mask_value(json.loads(entry.fields))
    at = to_datetime(entry.at)
    return JobLogLine(entry.number, at, entry.claim, entry.level, entry.message, named)


def outcome_view(outcome: Outcome, record: JobRecord) -> OutcomeView:
    """Return the view of an outcome; the job's policy says what is secret."""
    return OutcomeView(
        outcome.generation,
        outcome.state,
        outcome.attempt,
        _moment(outcome.started_at),
        to_datetime(outcome.finished_at),
        _result(outcome.result, record),
        error_view(outcome.error),
    )


def _result(text: str | None, record: JobRecord) -> Any:  # noqa: ANN401 - the JSON edge
    """Return a result; the job's policy says what is secret in it."""
    return None if text is None else json.loads(masked(text, record.definition.policy, "result"))


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


def item_views(entries: Sequence[ItemEntry], head: Head, *, all_attempts: bool) -> list[ItemView]:
    """Return the views of the items of the latest attempt, or of all attempts."""
    return [
        ItemView(item.name, item.status, item.detail, item.phase, claim)
        for claim, item in entries
        if all_attempts or claim == head.claims
    ]


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
