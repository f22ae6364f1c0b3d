"""The values that travel through everything: definition, head, fence.

These are named tuples, not dataclasses: a job passes through several of them on the hot path, and a
tuple is built in a fraction of the time. Like all values here they never change.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

from trellis.core.context import Context
from trellis.core.policy import Policy
from trellis.core.spans import Instant, Micros
from trellis.core.states import State

#: The public id of a job: a ULID, made by the client, so that a repeated call is the same job.
JobId = NewType("JobId", str)
#: One worker process's connection epoch: 63 random bits.
SessionId = NewType("SessionId", int)


class Fence(NamedTuple):
    """What a worker must show to write about an attempt: its session and this claim's token."""

    session: SessionId
    token: int

    @property
    def attempt_id(self) -> str:
        """The fence as 32 hex digits, as people and other programs see it."""
        return f"{self.session:016x}{self.token:016x}"


class Failure(NamedTuple):
    """Why an attempt ended badly."""

    #: A short stable word: `exception`, `timeout`, `lease_lost`, `crash_loop`, ...
    code: str
    message: str
    #: The exception's type and stack, where there was one.
    detail: str | None = None


class Head(NamedTuple):
    """What is now true of a job. Only transitions change it, and each adds one to `version`."""

    state: State
    version: int
    #: How often an operator brought the job back; outcomes are kept per generation.
    generation: int
    #: The budget used: attempts begun, minus those given back.
    attempt: int
    #: Claims ever made; only grows.
    claims: int
    #: How often the job took its process down, in this generation.
    crashes: int
    run_at: Instant
    fence: Fence | None
    claimed_at: Instant | None
    #: When a cancel was asked of the running attempt.
    asked_at: Instant | None
    #: The lease is lost but the attempt still holds its key, until an operator decides.
    blocked: bool
    #: Was in a process that died; next runs alone.
    suspect: bool
    error: Failure | None
    finished_at: Instant | None


class NewJob(NamedTuple):
    """A request for work, as the client sends it to an engine."""

    id: JobId
    service: str
    type: str
    queue: str
    #: JSON text.
    payload: str
    policy: Policy
    context: Context
    priority: int = 0
    #: Start not before this instant...
    run_at: Instant | None = None
    #: ...or this long after the engine accepts the job.
    delay: Micros = 0
    deadline_at: Instant | None = None
    deadline_in: Micros | None = None
    #: The readable key; engines store its hash beside it.
    key: str | None = None
    key_hash: str | None = None
    dedupe: str | None = None
    idempotency_key: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    #: JSON text: the configuration the job must run with, whatever changes later.
    config: str | None = None
    #: A hash the handler's world must match, else the job fails (a plan, a revision).
    expect: str | None = None
    schema_version: int = 1
    clone_of: JobId | None = None


class Definition(NamedTuple):
    """A job as accepted; never changes after creation."""

    #: The engine's own number for the job, in creation order. Opaque to everybody else.
    row: int
    id: JobId
    service: str
    type: str
    queue: str
    payload: str
    policy: Policy
    context: Context
    priority: int
    created_at: Instant
    deadline_at: Instant | None
    key: str | None
    key_hash: str | None
    tags: tuple[tuple[str, str], ...]
    config: str | None
    expect: str | None
    schema_version: int
    clone_of: JobId | None


class JobRecord(NamedTuple):
    """A job: what was asked, and where it stands."""

    definition: Definition
    head: Head


def deadline_of(new: NewJob, now: Instant) -> Instant | None:
    """Return the deadline a request has once it is accepted."""
    return new.deadline_at if new.deadline_in is None else now + new.deadline_in


def define(new: NewJob, row: int, now: Instant) -> Definition:
    """Fix a request's definition at the moment the engine accepts it."""
    return Definition(
        row,
        new.id,
        new.service,
        new.type,
        new.queue,
        new.payload,
        new.policy,
        new.context,
        new.priority,
        now,
        deadline_of(new, now),
        new.key,
        new.key_hash,
        new.tags,
        new.config,
        new.expect,
        new.schema_version,
        new.clone_of,
    )
