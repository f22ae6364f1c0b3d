"""Arguments and answers of the engine port: plain values.

Expected results are values of these types; an exception (`trellis.errors.EngineError`) means that
the engine itself could not work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, TypeAlias, assert_never

from trellis.core.admission import Admit, Coalesce, Decision, Reason, Reject, Repeat, Replace
from trellis.core.durations import Instant, Micros, micros
from trellis.core.items import ItemStatus
from trellis.core.job import Failure, Fence, JobId, JobRecord, NewJob, SessionId
from trellis.core.limits import UNSPENT, Spent
from trellis.core.states import State
from trellis.engines.worker_report import NO_REPORT, WorkerReport

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
    """Nothing was stored, because an existing job already covers the request."""

    existing: JobId
    reason: Reason


class Replaced(NamedTuple):
    """The job is stored; an older waiting job of its key was skipped in its favour."""

    job_id: JobId
    skipped: JobId


CreateResult: TypeAlias = Accepted | Rejected | Coalesced | Replaced


def accepted(ids: Iterable[JobId]) -> list[CreateResult]:
    """Return the answer of `create` when all of these jobs are stored."""
    return [_make(Accepted, (job_id,)) for job_id in ids]


def answer_to(new: NewJob, decision: Decision) -> CreateResult:
    """Return the answer of `create` once the decision is carried out."""
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


class Claimed(NamedTuple):
    """The claimed jobs, by priority (highest first), due time and creation."""

    now: Instant
    jobs: tuple[JobRecord, ...]
    #: When a rate of which no token is left lets the next waiting job start that was demanded.
    #: Jobs of paused queues do not count.
    next_at: Instant | None = None


class Committed(NamedTuple):
    """The transition is stored."""


class Conflict(NamedTuple):
    """The job had changed since the decision; nothing was stored. None: it was removed."""

    record: JobRecord | None


class KeyRefused(NamedTuple):
    """The job cannot be revived now: its key is full. Nothing was stored."""

    reason: Reason
    existing: JobId | None


CommitResult: TypeAlias = Committed | Conflict | KeyRefused

# -- notes -------------------------------------------------------------------------------------


class Begun(NamedTuple):
    """The handler was called."""

    at: Instant


class Heartbeat(NamedTuple):
    """The handler is alive."""


class Progress(NamedTuple):
    """How far the attempt is."""

    current: float | None = None
    total: float | None = None
    step: str | None = None
    message: str | None = None


class Phase(NamedTuple):
    """Which part of the work the attempt is in; a new phase starts with no progress."""

    name: str


class Item(NamedTuple):
    """One item of the work moved to another status.

    An item belongs to a phase of its attempt: the same name in another phase is another item.
    """

    name: str
    status: ItemStatus
    detail: str | None = None
    phase: str = ""


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
    """Something an attempt reports about itself; changes no version."""

    #: `Definition.row` and `Head.claims` of the attempt's claim.
    row: int
    claim: int
    fence: Fence
    body: NoteBody


class NoteResult(StrEnum):
    """Whether a note was stored."""

    NOTED = "noted"
    STALE = "stale"


class Activity(NamedTuple):
    """What the latest attempt reported about itself."""

    claim: int
    began_at: Instant | None
    seen_at: Instant | None
    progress: Progress | None
    phase: str | None
    #: In order of phase and name.
    items: tuple[Item, ...]


class ItemEntry(NamedTuple):
    """One stored item, and the claim whose attempt reported it."""

    claim: int
    item: Item


class LogEntry(NamedTuple):
    """One stored log line."""

    number: int
    at: Instant
    claim: int
    level: str
    message: str
    fields: str | None


# -- sessions ----------------------------------------------------------------------------------

#: How long an ended session is kept before `prune` removes it.
KEEP_SESSIONS: Final[Micros] = micros("1d")


class WorkerInfo(NamedTuple):
    """The identity of a worker process."""

    name: str
    host: str
    pid: int
    version: str = ""
    #: JSON text: services, types, slots.
    details: str = "{}"


#: The details of a session that belongs to a lock outside of handlers and runs no jobs.
LOCK_DETAILS: Final = '{"kind":"lock"}'
_LOCK: Final = LOCK_DETAILS.removesuffix("}")


class Session(NamedTuple):
    """An open session."""

    id: SessionId
    lease: Micros
    now: Instant


class Renewed(NamedTuple):
    """The lease is extended; what the worker should know about its claims."""

    now: Instant
    #: A cancel was requested for these attempts.
    asked: tuple[Fence, ...]
    #: These attempts no longer belong to the worker: stop their handlers.
    lost: tuple[Fence, ...]
    #: Claims of this session that the worker did not name, after a lost reply: release them.
    unknown: tuple[JobRecord, ...]
    #: An operator asked this worker process to finish its jobs and exit.
    draining: bool = False


class SessionLost(NamedTuple):
    """The session has ended: everything it held is lost."""

    now: Instant


class SessionRecord(NamedTuple):
    """A session as operators see it."""

    id: SessionId
    info: WorkerInfo
    opened_at: Instant
    renewed_at: Instant
    lease: Micros
    #: Its lease is over, and it has not been reaped yet.
    lapsed: bool
    ended_at: Instant | None
    held: int
    #: What the process reported with its last renewal, at `renewed_at`.
    report: WorkerReport = NO_REPORT
    #: Was asked to finish its jobs and exit.
    draining: bool = False

    @property
    def is_worker(self) -> bool:
        """Whether it belongs to a worker process, and not only to a lock."""
        return not self.info.details.startswith(_LOCK)


# -- locks -------------------------------------------------------------------------------------


class LockHolder(NamedTuple):
    """The holder of a lock: a session (token 0), or one attempt of it."""

    name: str
    session: SessionId
    token: int
    #: The name of its worker process.
    worker: str
    #: The job whose attempt holds it; None for a lock of the session itself.
    job_id: JobId | None
    since: Instant


# -- due ---------------------------------------------------------------------------------------

DueKind = Literal["sessions", "lost", "jobs", "batches"]


class DueJob(NamedTuple):
    """A job that maintenance must look at, and the last sign of life of its attempt."""

    record: JobRecord
    seen_at: Instant | None


class Due(NamedTuple):
    """What maintenance must look at now."""

    now: Instant
    sessions: tuple[SessionId, ...] = ()
    jobs: tuple[DueJob, ...] = ()


# -- reading -----------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """The jobs with the given ids, in that order; None for an id without a job."""

    now: Instant
    records: tuple[JobRecord | None, ...]
    #: The ids among those without a job whose job was removed, by retention or an operator.
    removed: frozenset[JobId] = frozenset()


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
    """Which jobs: every given part must match. Empty tuples and None mean any."""

    services: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    key: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    created_from: Instant | None = None
    created_before: Instant | None = None
    #: The beginning and the end of the id: ids made at the same moment begin alike.
    id_prefix: str | None = None
    id_suffix: str | None = None
    #: Part of the code or message of the latest error, in any case; every character is literal.
    error_contains: str | None = None
    finished_from: Instant | None = None
    finished_before: Instant | None = None
    #: The name, host or id of a worker process that has or had an attempt of the job.
    worker: str | None = None
    #: The id of a batch of which it is a member.
    batch: str | None = None
    #: The id of the job in whose handler, or at whose end, it was created.
    parent: str | None = None
    tenant: str | None = None
    #: The schedule that created it, in any service unless `services` names one.
    schedule: str | None = None
    #: Only jobs whose worker was lost and which block their keys until an operator decides.
    blocked: bool = False


class Page(NamedTuple):
    """A page of jobs, newest first. `after` of the next page is `next_after`."""

    as_of: Instant
    jobs: tuple[JobRecord, ...]
    next_after: int | None


class TagGroup(NamedTuple):
    """The value of the tag with this name; jobs without the tag are in the group ""."""

    name: str


#: `error` is the code of the latest error, `worker` the name of the worker process that has or had
#: the latest attempt, `tenant` the one whose share of the queue a job uses; jobs without one are in
#: the group "".
Group = Literal["state", "type", "queue", "service", "error", "worker", "tenant"]
GroupBy: TypeAlias = Group | TagGroup

#: The answer to a removal: "removed", or why the job stays.
Removal = Literal["removed", "live", "needed", "in_batch", "missing"]


class Counts(NamedTuple):
    """How many jobs match a filter, per combination of the groups of `count`, sorted."""

    as_of: Instant
    #: One name per group, in the order of the call; `()` when no group was given.
    combinations: Mapping[tuple[str, ...], int]

    @property
    def groups(self) -> dict[str, int]:
        """The numbers by name, when one group was given."""
        return {name: number for (name,), number in self.combinations.items()}

    @property
    def total(self) -> int:
        """The number of jobs in all groups together."""
        return sum(self.combinations.values())


class KeyStatus(NamedTuple):
    """One key: the jobs that hold it and the number that wait."""

    service: str
    type: str
    key: str
    key_hash: str
    #: Jobs that hold a slot, oldest first; lingering ones included.
    holders: tuple[JobId, ...]
    waiting: int
    blocked: bool
    #: How far the bucket of its rate is used up.
    spent: Spent = UNSPENT
    #: Lingering slots of jobs that were removed since.
    removed: int = 0

    @property
    def taken(self) -> int:
        """How many of its slots are taken."""
        return len(self.holders) + self.removed


class QueueSettings(NamedTuple):
    """The settings of a queue, made by operators."""

    service: str
    queue: str
    #: No job is claimed.
    paused: bool = False
    #: No new job is accepted.
    draining: bool = False


# -- the engine itself -------------------------------------------------------------------------

Topic = Literal["ready", "settled", "asked"]


class Migration(NamedTuple):
    """The schema versions before and after `migrate`, and the scripts between them."""

    before: int
    after: int
    #: The number and text of each script that was missing before, in order.
    scripts: Sequence[tuple[int, str]] = ()


class Health(NamedTuple):
    """What an engine reports about itself."""

    engine: str
    #: What an acknowledged job survives, in words.
    durability: str
    facts: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
