"""The values every component uses: request, context, definition, head, fence.

These are named tuples, not dataclasses: a job passes through several of them on the hot path, and a
tuple is built in a fraction of the time. Like all values of `core` they are immutable.

The functions below each class build it on the hot path, at half the cost of calling the class.
Only they rely on the order of the fields; all other code builds and reads these values by name. A
new field is added to its class and to the functions below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, NewType, TypeAlias

from trellis.core.durations import Instant, Micros
from trellis.core.policy import Policy, in_force
from trellis.core.states import State

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
#: Builds a named tuple from its fields in order and checks nothing.
_make: Final = tuple.__new__


class Context(NamedTuple):
    """The request and the trace that a job belongs to; they never change.

    `traceparent` follows W3C Trace Context, version 00. The random parts are arguments: the client
    takes them from the active OpenTelemetry span or makes new ones, so every job has a trace.
    """

    request_id: str
    traceparent: str
    tracestate: str | None = None

    @property
    def trace_id(self) -> str:
        """The 32 hex digits that all spans of this trace share."""
        return self.traceparent[3:35]


def build_context(request_id: str, traceparent: str, tracestate: str | None) -> Context:
    """Return a context, at half the cost of calling the class."""
    return _make(Context, (request_id, traceparent, tracestate))


def build_contexts(
    request_ids: Iterable[str], traceparent: str, tracestate: str | None
) -> list[Context]:
    """Return contexts of many requests in one trace."""
    return [_make(Context, (each, traceparent, tracestate)) for each in request_ids]


def is_traceparent(text: str) -> bool:
    """Return whether the text is a valid W3C traceparent."""
    return _TRACEPARENT.fullmatch(text) is not None


def fresh_context(request_id: str, trace_bits: int, span_bits: int) -> Context:
    """Return the context of a job outside any trace, from 128 and 64 random bits."""
    return Context(request_id, traceparent(trace_bits or 1, span_bits or 1, flags=0))


def random_traceparent(randomness: bytes) -> str:
    """Write a traceparent from 24 random bytes.

    W3C forbids an id of zeros; 24 random bytes do not contain one in practice.
    """
    digits = randomness.hex()
    return f"00-{digits[:32]}-{digits[32:]}-00"


def is_possible_id(text: str) -> bool:
    """Return whether a job can have this id; other texts cannot be stored on every engine."""
    return text.isascii() and "\0" not in text


def traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Write a W3C traceparent."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"


#: The public id of a job: a ULID, chosen by the client, so that a repeated call is the same job.
JobId = NewType("JobId", str)
#: One session of a worker process: 63 random bits.
SessionId = NewType("SessionId", int)

#: Builds a named tuple from its fields in order and checks nothing: for this module only.
# Reading a member of an enum takes as long as building a tuple.
_ACTIVE: Final = State.ACTIVE


def _part(kind: type[tuple[Any, ...]], first: str, last: str) -> itemgetter[Any]:
    """Return a function that reads these adjacent fields of a named tuple in one step."""
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined] # a named tuple's
    return itemgetter(slice(names.index(first), names.index(last) + 1))


class Fence(NamedTuple):
    """The right to write about an attempt: a session and the token of one claim."""

    session: SessionId
    token: int

    @property
    def attempt_id(self) -> str:
        """The fence as 32 hex digits, as users and other programs see it."""
        return f"{self.session:016x}{self.token:016x}"


class Failure(NamedTuple):
    """Why an attempt failed."""

    #: A short stable word: `exception`, `timeout`, `lease_lost`, `crash_loop`, ...
    code: str
    message: str
    #: The exception's type and stack, where there was one.
    detail: str | None = None
    #: JSON text that the handler gave: `raise Fail("no such order", data={"order": 7})`.
    data: str | None = None


def mentions(error: Failure | None, text: str) -> bool:
    """Return whether the error's code or message contains this text, in any case.

    >>> mentions(Failure("timeout", "Took 100% of its time."), "100%")
    True
    """
    wanted, texts = text.casefold(), () if error is None else (error.code, error.message)
    return any(wanted in each.casefold() for each in texts)


def error_code(error: Failure | None) -> str:
    """Return the code under which errors are counted; "" if there is no error."""
    return "" if error is None else error.code


class Head(NamedTuple):
    """The present state of a job. Only transitions change it, and each adds one to `version`."""

    state: State
    version: int
    #: How often an operator has run the job again; outcomes are kept per generation.
    generation: int
    #: Attempts used: those begun, minus those handed back or snoozed.
    attempt: int
    #: All claims ever made; never decreases.
    claims: int
    #: How often the job crashed its process, in this generation.
    crashes: int
    run_at: Instant
    fence: Fence | None = None
    claimed_at: Instant | None = None
    #: When the running attempt was asked to cancel.
    asked_at: Instant | None = None
    #: The lease is lost, but the attempt holds its key until an operator decides.
    blocked: bool = False
    #: Ran in a process that died with several jobs; the next attempt runs alone.
    suspect: bool = False
    error: Failure | None = None
    finished_at: Instant | None = None


#: The fields that completing does not change: generation, attempt, claims, crashes and `run_at`.
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


#: While its job was never claimed, or while it has not ended.
DedupeWhile: TypeAlias = Literal["pending", "unfinished"]


class Dedupe(NamedTuple):
    """A dedupe key, and how long it keeps out other jobs; see `admission.holds_dedupe`."""

    key: str
    #: None: only during the period.
    during: DedupeWhile | None = "pending"
    #: So long after creation, whatever happens to the job.
    period: Micros | None = None


#: What a prerequisite must do before the job that waits for it may start: succeed, or just end.
FollowsOn: TypeAlias = Literal["success", "finished"]


class Prerequisite(NamedTuple):
    """A job that must end before another may start; see `dependencies.py`."""

    id: JobId
    on: FollowsOn = "success"


class Relations(NamedTuple):
    """What a job belongs to, where it belongs to anything."""

    #: The job in whose handler, or at whose end, it was created.
    parent: JobId | None = None
    #: The batch of which it is a member.
    batch: str | None = None
    #: The schedule that created it, and the moment for which it did.
    schedule: str | None = None
    slot: Instant | None = None
    #: The tenant whose share of the queue it uses.
    tenant: str | None = None
    #: The prerequisite whose result is its payload.
    payload_from: JobId | None = None
    #: The batch that it follows: all members of that batch have finished.
    fan_in_of: str | None = None
    #: How many turns its tenant gets for each turn of another; None: one.
    weight: int | None = None
    #: While its payload is not known: the template of its tenant, and the weights of tenants.
    fair: str | None = None
    weights: tuple[tuple[str, int], ...] | None = None

    @property
    def of_tenant(self) -> Relations:
        """What a copy of the job belongs to: its tenant only."""
        return Relations(tenant=self.tenant, weight=self.weight)


class NewJob(NamedTuple):
    """A request to create a job, as the client sends it to an engine."""

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
    dedupe: Dedupe | None = None
    idempotency_key: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    #: JSON text: the configuration the job must run with, even if it changes later.
    config: str | None = None
    #: A text (a plan, a revision) that must match when the handler runs, else the job fails.
    expect: str | None = None
    schema_version: int = 1
    clone_of: JobId | None = None
    #: What the creator asked for instead of the type's policy.
    attempts: int | None = None
    timeout: Micros | None = None
    relations: Relations | None = None
    #: The jobs it waits for.
    after: tuple[Prerequisite, ...] = ()
    #: The attempt of the parent that creates it: it must be the present one.
    spawner: Fence | None = None
    #: Store it only if every job of the call is stored.
    together: bool = False


#: Service, type and queue of a request.
names_of: Final = _part(NewJob, "service", "queue")
#: The options of a request: its priority and all fields after it.
options_of: Final = _part(NewJob, "priority", NewJob._fields[-1])
#: The options after the priority, and their values in a request without options.
special_options_of: Final = _part(NewJob, "run_at", NewJob._fields[-1])
NOTHING_SPECIAL: Final = special_options_of(
    tuple(NewJob._field_defaults.get(n) for n in NewJob._fields)
)


def vary(shared: NewJob, job_id: JobId, payload: str, context: Context) -> NewJob:
    """Return a request with this id, payload and context, and all other fields of `shared`."""
    # Positions and addition take half the time that names and one long tuple would take.
    varied = (job_id, shared[1], shared[2], shared[3], payload, shared[5], context)
    return _make(NewJob, varied + options_of(shared))


class Definition(NamedTuple):
    """A job as accepted. Only operators change it (queue, priority, attempts).

    A job with `relations.payload_from` gets its payload once, when that job has succeeded.

    `policy` is the policy in force: a claim may replace it, see `policy.in_force`.
    """

    #: The engine's number for the job, in creation order. Only engines interpret it.
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
    dedupe: Dedupe | None
    #: What the creator or an operator asked for instead of the type's policy.
    attempts: int | None
    timeout: Micros | None
    relations: Relations | None


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
    dedupe: Dedupe | None = None,
    attempts: int | None = None,
    timeout: Micros | None = None,
    relations: Relations | None = None,
) -> Definition:
    """Return the definition of a job; arguments left out have their defaults."""
    fields = (
        row, id, service, type, queue, payload, policy, context, priority, created_at,
        deadline_at, key, key_hash, tags, config, expect, schema_version, clone_of, dedupe,
        attempts, timeout, relations,
    )  # fmt: skip
    return _make(Definition, fields)


class JobRecord(NamedTuple):
    """A job: its definition and its present state."""

    definition: Definition
    head: Head


def build_record(definition: Definition, head: Head) -> JobRecord:
    """Return a job."""
    return _make(JobRecord, (definition, head))


def claimed_record(  # noqa: PLR0917 - positional on the hot path, by name elsewhere
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
    """Return the definition of a request that the engine accepts at this moment."""
    return build_definition(
        row=row,
        id=new.id,
        service=new.service,
        type=new.type,
        queue=new.queue,
        payload=new.payload,
        policy=in_force(new.policy, None, new.attempts, new.timeout),
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
        dedupe=new.dedupe,
        attempts=new.attempts,
        timeout=new.timeout,
        relations=new.relations,
    )
