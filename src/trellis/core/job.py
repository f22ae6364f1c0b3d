"""The values that travel through everything: definition, head, fence.

These are named tuples, not dataclasses: a job passes through several of them on the hot path, and a
tuple is built in a fraction of the time. Like all values here they never change.

The functions behind each class build it on the hot path, at half the cost of calling the class.
Only they rely on the order of the fields; all other code builds and reads these values by name. A
new field is added to its class and to the functions behind it.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final, NamedTuple, NewType

from trellis.core.durations import Instant, Micros
from trellis.core.policy import Policy
from trellis.core.states import State
from trellis.core.trace_context import Context

#: The public id of a job: a ULID, made by the client, so that a repeated call is the same job.
JobId = NewType("JobId", str)
#: One worker process's connection epoch: 63 random bits.
SessionId = NewType("SessionId", int)

#: Builds a named tuple from its fields in order and checks nothing: for this module only.
_make: Final = tuple.__new__
# Asking an enum for a member takes as long as building a tuple.
_ACTIVE: Final = State.ACTIVE


def _part(kind: type[tuple[Any, ...]], first: str, last: str) -> itemgetter[Any]:
    """Return what reads these neighbouring fields of a named tuple in one step."""
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined] # a named tuple's
    return itemgetter(slice(names.index(first), names.index(last) + 1))


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
    fence: Fence | None = None
    claimed_at: Instant | None = None
    #: When a cancel was asked of the running attempt.
    asked_at: Instant | None = None
    #: The lease is lost but the attempt still holds its key, until an operator decides.
    blocked: bool = False
    #: Was in a process that died; next runs alone.
    suspect: bool = False
    error: Failure | None = None
    finished_at: Instant | None = None


#: What completing leaves as it was: generation, attempt, claims, crashes and `run_at`.
kept_by_completing: Final = _part(Head, "generation", "run_at")


def first_head(run_at: Instant) -> Head:
    """Return the head of a job that was just accepted."""
    return Head(
        state=State.PENDING,
        version=1,
        generation=0,
        attempt=0,
        claims=0,
        crashes=0,
        run_at=run_at,
    )


def ended_head(
    before: Head, state: State, finished_at: Instant, error: Failure | None, crashes: int
) -> Head:
    """Return the head of a job that has just ended, from the one before."""
    fields = (
        state, before.version + 1, before.generation, before.attempt, before.claims, crashes,
        before.run_at, None, None, None, False, False, error, finished_at,
    )  # fmt: skip
    return _make(Head, fields)


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


#: Service, type and queue of a request.
names_of: Final = _part(NewJob, "service", "queue")
#: What a request may ask for beyond its payload: its priority and all fields behind it.
options_of: Final = _part(NewJob, "priority", NewJob._fields[-1])
#: The options behind the priority, and what they are when a request asks for nothing special.
special_options_of: Final = _part(NewJob, "run_at", NewJob._fields[-1])
NOTHING_SPECIAL: Final = special_options_of(
    tuple(NewJob._field_defaults.get(n) for n in NewJob._fields)
)


def vary(shared: NewJob, job_id: JobId, payload: str, context: Context) -> NewJob:
    """Return a request that has these of its own, and everything else from another."""
    # By place and by adding: half of the time that names and one long tuple would take.
    varied = (job_id, shared[1], shared[2], shared[3], payload, shared[5], context)
    return _make(NewJob, varied + options_of(shared))


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


def build_definition(  # noqa: PLR0917
    row: int,
    id: JobId,  # noqa: A002 - named as the field is
    service: str,
    type: str,  # noqa: A002
    queue: str,
    payload: str,
    policy: Policy,
    context: Context,
    priority: int,
    created_at: Instant,
    deadline_at: Instant | None = None,
    key: str | None = None,
    key_hash: str | None = None,
    tags: tuple[tuple[str, str], ...] = (),
    config: str | None = None,
    expect: str | None = None,
    schema_version: int = 1,
    clone_of: JobId | None = None,
) -> Definition:
    """Return the definition of a job; what is left out was not asked for."""
    fields = (
        row, id, service, type, queue, payload, policy, context, priority, created_at,
        deadline_at, key, key_hash, tags, config, expect, schema_version, clone_of,
    )  # fmt: skip
    return _make(Definition, fields)


class JobRecord(NamedTuple):
    """A job: what was asked, and where it stands."""

    definition: Definition
    head: Head


def build_record(definition: Definition, head: Head) -> JobRecord:
    """Return a job."""
    return _make(JobRecord, (definition, head))


def claimed_record(  # noqa: PLR0917 - by place on the hot path, by name elsewhere
    definition: Definition,
    session: SessionId,
    token: int,
    claimed_at: Instant,
    version: int,
    generation: int,
    attempt: int,
    claims: int,
    crashes: int,
    run_at: Instant,
    suspect: bool = False,  # noqa: FBT001, FBT002
    error: Failure | None = None,
) -> JobRecord:
    """Return a job that this session has just claimed with this token."""
    head = (
        _ACTIVE, version, generation, attempt, claims, crashes, run_at,
        _make(Fence, (session, token)), claimed_at, None, False, suspect, error, None,
    )  # fmt: skip
    return _make(JobRecord, (definition, _make(Head, head)))


def deadline_of(new: NewJob, now: Instant) -> Instant | None:
    """Return the deadline a request has once it is accepted."""
    return new.deadline_at if new.deadline_in is None else now + new.deadline_in


def define(new: NewJob, row: int, now: Instant) -> Definition:
    """Fix a request's definition at the moment the engine accepts it."""
    return build_definition(
        row=row,
        id=new.id,
        service=new.service,
        type=new.type,
        queue=new.queue,
        payload=new.payload,
        policy=new.policy,
        context=new.context,
        priority=new.priority,
        created_at=now,
        deadline_at=deadline_of(new, now),
        key=new.key,
        key_hash=new.key_hash,
        tags=new.tags,
        config=new.config,
        expect=new.expect,
        schema_version=new.schema_version,
        clone_of=new.clone_of,
    )
