"""From stored rows to what people see: the one place where secrets are masked on the way out."""

from __future__ import annotations

import json
from datetime import datetime

from trellis.contract.masking import mask_value, masked
from trellis.core.events import Event
from trellis.core.job import Failure, JobRecord
from trellis.core.spans import Instant, to_datetime
from trellis.engines.values import (
    Activity,
    KeyStatus,
    LockHolder,
    LogEntry,
    Outcome,
    QueueSettings,
    SessionRecord,
)
from trellis.insight.views import (
    ErrorView,
    EventView,
    JobView,
    KeyView,
    LockView,
    LogView,
    OutcomeView,
    ProgressView,
    QueueView,
    WorkerState,
    WorkerView,
)


def job_view(record: JobRecord) -> JobView:
    """Return a job for people."""
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
    """Return an error for people."""
    return None if error is None else ErrorView(*error)


def event_view(event: Event) -> EventView:
    """Return an entry of a journal for people."""
    return EventView(
        event.kind.value,
        event.state,
        to_datetime(event.at),
        event.version,
        event.attempt,
        None if event.fence is None else event.fence.attempt_id,
        mask_value(dict(event.data or {})),
    )


def log_view(entry: LogEntry) -> LogView:
    """Return a log line for people."""
    said = {} if entry.fields is None else mask_value(json.loads(entry.fields))
    at = to_datetime(entry.at)
    return LogView(entry.number, at, entry.claim, entry.level, entry.message, said)


def outcome_view(outcome: Outcome, record: JobRecord) -> OutcomeView:
    """Return an outcome for people."""
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
    """Return what an attempt said, for people."""
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
    """Return a worker process for people."""
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
    """Return a key for people."""
    return KeyView(
        status.service, status.type, status.key, status.holders, status.waiting, status.blocked
    )


def queue_view(settings: QueueSettings, waiting: int, active: int) -> QueueView:
    """Return a queue for people."""
    return QueueView(*settings, waiting, active)


def lock_view(lock: LockHolder) -> LockView:
    """Return a lock for people."""
    return LockView(lock.name, lock.worker, lock.job_id, to_datetime(lock.since))


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
