"""What engines know, as values with plain names: aware datetimes, JSON values, secrets masked.

The operator's API, the command line's `--json` and later the server return these; `viewing.py`
makes them. `as_json` writes the documented document; a name in it never changes its meaning, new
names may come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, Literal

from trellis.core.states import State


@dataclass(frozen=True, slots=True)
class ErrorView:
    """What an attempt died of."""

    #: A short stable word: `exception`, `timeout`, `lease_lost`, ...
    code: str
    message: str
    #: The exception's type and stack, where there was one.
    detail: str | None


@dataclass(frozen=True, slots=True)
class JobView:
    """One job, as it stands."""

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
    #: Not before this moment will it start (again).
    run_at: datetime
    deadline_at: datetime | None
    #: When the running attempt was claimed.
    claimed_at: datetime | None
    finished_at: datetime | None
    #: A cancel was asked and the handler has not stopped yet.
    cancel_asked: bool
    #: The attempt was lost and still holds its key, until an operator decides.
    blocked: bool
    #: What the latest attempt died of.
    error: ErrorView | None
    #: Secrets are masked.
    payload: Any
    #: How often an operator brought it back, it was claimed, and it took its process down.
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
class EventView:
    """One entry of a journal."""

    event: str
    state: State
    at: datetime
    #: The version it made; 0 for a note, which changed nothing.
    version: int
    attempt: int
    attempt_id: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogView:
    """One line of a job's log."""

    number: int
    at: datetime
    claim: int
    level: str
    message: str
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
    """What the latest attempt said about itself."""

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
    #: `silent`: its lease is over, and nobody has taken its jobs yet.
    state: WorkerState
    #: The types it runs, as service/type.
    types: tuple[str, ...]
    slots: int
    #: Handlers that ran when it was last heard of.
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
    """One key: who runs, who waits."""

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
    """One lock and who has it."""

    name: str
    worker: str
    #: The job whose attempt holds it; None for a lock of the worker process itself.
    job_id: str | None
    since: datetime


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
