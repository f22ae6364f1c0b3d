"""What goes into an engine and what comes out: plain values.

Expected results are values of these types; exceptions (`trellis.errors.EngineError`) mean that the
engine itself could not work.

How a text is looked for in an error: one meaning for every engine.

What every engine asks of a lock's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, TypeAlias, assert_never

from trellis.core.admission import Admit, Coalesce, Decision, Reason, Reject, Repeat, Replace
from trellis.core.durations import Instant, Micros, micros
from trellis.core.job import Failure, Fence, JobId, JobRecord, NewJob, SessionId
from trellis.core.states import State
from trellis.errors import ConfigurationError

#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__

# -- create ------------------------------------------------------------------------------------


class Accepted(NamedTuple):
    """The job is stored. A repeated call with the same id and payload gives the same answer."""

    job_id: JobId


class Rejected(NamedTuple):
    """Nothing was stored."""

    reason: Reason
    existing: JobId | None


class Coalesced(NamedTuple):
    """Nothing was stored, because this job already stands for the request."""

    existing: JobId
    reason: Reason


class Replaced(NamedTuple):
    """The job is stored; an older waiting one of its key was skipped for it."""

    job_id: JobId
    skipped: JobId


CreateResult: TypeAlias = Accepted | Rejected | Coalesced | Replaced


def accepted(ids: Iterable[JobId]) -> list[CreateResult]:
    """Return what `create` answers when all of these jobs are stored."""
    return [_make(Accepted, (job_id,)) for job_id in ids]


def answer_to(new: NewJob, decision: Decision) -> CreateResult:
    """Return what `create` answers once the decision is carried out."""
    match decision:
        case Admit() | Repeat():
            return Accepted(new.id)
        case Reject(reason, existing):
            return Rejected(reason, existing)
        case Coalesce(existing, reason):
            return Coalesced(existing, reason)
        case Replace(existing):
            return Replaced(new.id, existing)
        case unreachable:
            assert_never(unreachable)


# -- claim and commit --------------------------------------------------------------------------


class Demand(NamedTuple):
    """What a worker can take: up to `limit` jobs of these types from one queue."""

    service: str
    queue: str
    types: tuple[str, ...]
    limit: int


class Claimed(NamedTuple):
    """The jobs a claim took, highest priority first, then in creation order."""

    now: Instant
    jobs: tuple[JobRecord, ...]


class Committed(NamedTuple):
    """The transition is stored."""


class Conflict(NamedTuple):
    """The job had changed since the decision; nothing was stored. None: the job is gone."""

    record: JobRecord | None


class KeyRefused(NamedTuple):
    """The job may not come back now: its key is full. Nothing was stored."""

    reason: Reason
    existing: JobId | None


CommitResult: TypeAlias = Committed | Conflict | KeyRefused

# -- notes -------------------------------------------------------------------------------------


class Begun(NamedTuple):
    """The handler was called."""

    at: Instant


class Heartbeat(NamedTuple):
    """The handler lives."""


class Progress(NamedTuple):
    """How far the attempt is."""

    current: float | None = None
    total: float | None = None
    step: str | None = None
    message: str | None = None


class Phase(NamedTuple):
    """Which part of the work the attempt is in; a new phase starts with no items."""

    name: str


ItemStatus = Literal["in_progress", "completed", "skipped", "failed"]


class Item(NamedTuple):
    """One item of the work moved to another status."""

    name: str
    status: ItemStatus
    detail: str | None = None


class LogLine(NamedTuple):
    """One line of the job's log."""

    level: str
    message: str
    #: JSON text of further fields.
    fields: str | None = None


class LateResult(NamedTuple):
    """An old attempt tried to settle; the journal keeps that it was refused."""

    command: str
    detail: str | None = None


NoteBody: TypeAlias = Begun | Heartbeat | Progress | Phase | Item | LogLine | LateResult


class Note(NamedTuple):
    """Something an attempt says about itself; changes no version."""

    #: `Definition.row` and `Head.claims` of the attempt's claim.
    row: int
    claim: int
    fence: Fence
    body: NoteBody


class NoteResult(StrEnum):
    """Whether a note was kept."""

    NOTED = "noted"
    STALE = "stale"


class Activity(NamedTuple):
    """What the latest attempt said about itself."""

    claim: int
    began_at: Instant | None
    seen_at: Instant | None
    progress: Progress | None
    phase: str | None
    items: tuple[Item, ...]


class LogEntry(NamedTuple):
    """One stored log line."""

    number: int
    at: Instant
    claim: int
    level: str
    message: str
    fields: str | None


# -- sessions ----------------------------------------------------------------------------------

#: How long a session that is over can still be looked at, before `prune` removes it.
KEEP_SESSIONS: Final[Micros] = micros("1d")


class WorkerInfo(NamedTuple):
    """Who a worker process is."""

    name: str
    host: str
    pid: int
    version: str = ""
    #: JSON text: services, types, slots.
    details: str = "{}"


class Session(NamedTuple):
    """An open session."""

    id: SessionId
    lease: Micros
    now: Instant


class Renewed(NamedTuple):
    """The lease goes on; what the worker should know about its claims."""

    now: Instant
    #: A cancel was asked of these attempts.
    asked: tuple[Fence, ...]
    #: These attempts are no longer the worker's: stop their handlers.
    lost: tuple[Fence, ...]
    #: Claims of this session that the worker did not name: a lost reply. Release them.
    unknown: tuple[JobRecord, ...]
    #: An operator asked this worker process to finish what it has and go.
    draining: bool = False


class SessionLost(NamedTuple):
    """The session was reaped: everything it held is lost."""

    now: Instant


class SessionRecord(NamedTuple):
    """A session as operators see it."""

    id: SessionId
    info: WorkerInfo
    opened_at: Instant
    renewed_at: Instant
    lease: Micros
    #: Its lease is over but nobody has reaped it yet.
    lapsed: bool
    ended_at: Instant | None
    held: int
    #: Handlers running at the last renewal.
    busy: int = 0
    #: Was asked to finish and go.
    draining: bool = False


# -- locks -------------------------------------------------------------------------------------


class LockHolder(NamedTuple):
    """Who holds a lock: a session (token 0), or one attempt of it."""

    name: str
    session: SessionId
    token: int
    #: The name its worker process gave itself.
    worker: str
    #: The job whose attempt holds it; None for a lock of the session itself.
    job_id: JobId | None
    since: Instant


#: A lock in a list is its holder.
LockRecord: TypeAlias = LockHolder

# -- due ---------------------------------------------------------------------------------------

DueKind = Literal["sessions", "lost", "jobs"]


class DueJob(NamedTuple):
    """A job that must be looked at, and the last sign of life of its attempt."""

    record: JobRecord
    seen_at: Instant | None


class Due(NamedTuple):
    """What maintenance must look at now."""

    now: Instant
    sessions: tuple[SessionId, ...] = ()
    jobs: tuple[DueJob, ...] = ()


# -- reading -----------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """The asked jobs, in the order asked; None for an id that is not there."""

    now: Instant
    records: tuple[JobRecord | None, ...]


class Outcome(NamedTuple):
    """How one generation of a job ended."""

    generation: int
    state: State
    attempt: int
    started_at: Instant | None
    finished_at: Instant
    #: JSON text.
    result: str | None
    error: Failure | None


class JobFilter(NamedTuple):
    """Which jobs: every given part must fit. Empty tuples and None mean any."""

    services: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    key: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    created_from: Instant | None = None
    created_before: Instant | None = None
    #: How the id begins and how it ends: ids made in one moment begin alike.
    id_prefix: str | None = None
    id_suffix: str | None = None
    #: Part of the code or message of the latest error, in any case; every character is literal.
    error_contains: str | None = None
    finished_from: Instant | None = None
    finished_before: Instant | None = None


class Page(NamedTuple):
    """A page of jobs, newest first. `after` of the next page is `next_after`."""

    as_of: Instant
    jobs: tuple[JobRecord, ...]
    next_after: int | None


#: `error` is the code of the latest error; jobs without one are in the group "".
GroupBy = Literal["state", "type", "queue", "service", "error"]

#: What became of a wish to remove a job: a live one is refused.
Removal = Literal["removed", "live", "missing"]


class Counts(NamedTuple):
    """How many jobs fit a filter, per group."""

    as_of: Instant
    groups: Mapping[str, int]


class CrossCounts(NamedTuple):
    """How many jobs fit a filter, per combination of groups, each in the order asked."""

    as_of: Instant
    groups: Mapping[tuple[str, ...], int]


class KeyStatus(NamedTuple):
    """One key: who runs, who waits."""

    service: str
    type: str
    key: str
    key_hash: str
    #: Jobs that hold a slot, oldest first; lingering ones included.
    holders: tuple[JobId, ...]
    waiting: int
    blocked: bool


class QueueSettings(NamedTuple):
    """What operators set on a queue."""

    service: str
    queue: str
    #: Nothing is claimed.
    paused: bool = False
    #: Nothing new is accepted.
    draining: bool = False


# -- the engine itself -------------------------------------------------------------------------

Topic = Literal["ready", "settled"]


class Capabilities(NamedTuple):
    """What an engine can and cannot do; a conformance test may be skipped only by naming one."""

    #: Survives the end of the process.
    durable: bool
    #: Several processes may use it at once.
    processes: bool
    #: A job can be created inside the caller's own transaction, and be rolled back with it.
    transactions: bool = False
    #: Leases count on a clock nobody can set, which starts anew with the machine.
    boot_clock: bool = True
    #: While a caller's transaction is open, nobody else can write.
    one_writer: bool = False


class Health(NamedTuple):
    """What an engine says about itself."""

    engine: str
    #: What an acknowledgement survives, in words.
    durability: str
    facts: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


def mentions(error: Failure | None, text: str) -> bool:
    """Tell whether the error's code or message contains this text, in any case.

    >>> mentions(Failure("timeout", "Took 100% of its time."), "100%")
    True
    """
    if error is None:
        return False
    wanted = text.casefold()
    return wanted in error.code.casefold() or wanted in error.message.casefold()


def error_code(error: Failure | None) -> str:
    """Return the code under which errors are counted; "" if there is no error."""
    return "" if error is None else error.code


MAX_NAME_LENGTH: Final = 512


def check_lock_name(name: str) -> str:
    """Refuse a name that not every engine can store; return it otherwise."""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise ConfigurationError(
            f"The name of a lock must be a text of 1 to {MAX_NAME_LENGTH} characters."
        )
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name):
        raise ConfigurationError(
            "The name of a lock contains U+0000 or a lone surrogate, which not every engine can "
            "store. Remove it."
        )
    return name
