"""The engine port: everything Trellis asks of a store, one protocol per subject.

`Engine` is `Jobs` (write jobs), `Batches`, `Ordering` (the order of claims), `Sessions` (leases of
worker processes), `Locks`, `Limits`, `Schedules`, `Dependencies` (jobs that wait for others),
`Contracts`, `Tokens`, `Maintenance`, `Reads` and `Feed`, and can be opened and closed. Verbs take
and return plain values, most of them many at once.

No verb is a word of the lifecycle: the state of a job changes only through `commit`, which stores
what `core.lifecycle.decide` decided, guarded by version and fence. There are two exceptions:
`claim` is one set-based operation in each engine and must store exactly what the rule for `Claim`
says; and for the admission of a key, the engine gathers the facts under its own gate, `core`
decides, and the engine writes.

Promises of every engine, checked by `trellis.testing.conformance`:

- `create` is atomic per job and serial per key; repeating a call with the same ids stores nothing.
- `commit` stores head and event together or not at all; on a conflict it stores nothing.
- A slot is a row owned by a job, then by its attempt. Freeing a slot gives it to the next waiting
  job of the key in the same step.
- The engine's clock stamps every write and judges every lease, run time and deadline. Answers that
  depend on the time carry `now` or `as_of`, which is not before any event of the jobs in them, so
  the times of a journal never go back.
- A change by an operator and its entry in the audit are stored together or not at all; a call that
  changes nothing leaves no entry.
- A job that waits for others is resolved or cancelled in the transaction in which the last of them
  ends, or the first one fails it; after very many of them, by the next `promote`.
- A lock is a row that is valid only while its holder is; see `Locks.take_lock`.
- `watch` yields hints. Everything works without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from trellis.core.durations import Instant, Micros
from trellis.core.events import Event
from trellis.core.job import Fence, JobId, JobRecord, NewJob, SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.archive import Archived, ArchiveState
from trellis.engines.audit import OPERATOR, AuditEntry, AuditFilter, By
from trellis.engines.capabilities import Capabilities
from trellis.engines.contracts import KEPT_CONTRACTS, ContractRecord, DeclaredType, NewContract
from trellis.engines.demand import Demand
from trellis.engines.feed import Changes, Expired
from trellis.engines.flow_port import Batches, Dependencies, Limits, Ordering, Schedules
from trellis.engines.limits import Names
from trellis.engines.operating import RATE_EVENTS, Drain, DrainChange, JobFacts, Rates, WorkerName
from trellis.engines.tokens import NewToken, TokenRecord
from trellis.engines.values import (
    Activity,
    Claimed,
    CommitResult,
    Counts,
    CreateResult,
    Due,
    DueKind,
    GroupBy,
    Health,
    ItemEntry,
    JobFilter,
    KeyStatus,
    Loaded,
    LockHolder,
    LogEntry,
    Migration,
    Note,
    NoteResult,
    Outcome,
    Page,
    QueueSettings,
    Removal,
    Renewed,
    Session,
    SessionLost,
    SessionRecord,
    Topic,
    WorkerInfo,
)
from trellis.engines.worker_report import NO_REPORT, WorkerReport


class Jobs(Protocol):
    """Verbs that write jobs and the settings of their queues."""

    async def create(self, jobs: Sequence[NewJob], by: By | None = None) -> list[CreateResult]:
        """Admit and store new jobs (see `NewJob.together`); return one answer per job, in order.

        With `by`, an operator creates them, and the audit gets an entry for each that is stored.
        """

    def create_within(
        self, connection: object, jobs: Sequence[NewJob]
    ) -> list[CreateResult] | Awaitable[list[CreateResult]]:
        """Create inside the caller's transaction, on the caller's connection.

        Admits exactly as `create` does, and commits nothing: the caller's commit stores the jobs
        together with the caller's rows, the caller's rollback discards them. The engine need not be
        open. Raises `TransactionRefused` for a connection that cannot keep this promise. After any
        error nothing of the call is left and the caller's transaction can continue. The memory
        engine has no transactions: it accepts any object as a connection and creates at once.
        """

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim up to `limit` due jobs for a session: by priority, due time, creation."""

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, each separately, guarded by version and fence; one answer each."""

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Store progress, items, log lines and signs of life of attempts whose fence holds."""

    async def remove(self, ids: Sequence[JobId], by: By = OPERATOR) -> list[Removal]:
        """Remove ended jobs at once, dead letters too, as `prune` does.

        Refuse live ones, and those that a live job follows.
        """

    async def set_queue(self, settings: QueueSettings, by: By = OPERATOR) -> None:
        """Pause, drain or reopen a queue."""

    async def set_drain(self, drain: Drain) -> None:
        """Accept no new job in any queue, or accept them again; claims go on in both cases."""


class Sessions(Protocol):
    """Verbs about worker processes and their leases."""

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session; its lease covers every job it will claim."""

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        report: WorkerReport = NO_REPORT,
    ) -> Renewed | SessionLost:
        """Extend the lease, and compare what the worker holds with what the engine has stored.

        `stopped` names ended attempts whose handlers have stopped: their slots and locks stop
        lingering. The report is stored with the session, for displays.
        """

    async def close_session(self, session: SessionId) -> None:
        """End a session gracefully: its claims are due as lost, lingering slots linger on."""

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease has lapsed; its claims are due as lost. False: it is alive."""

    async def ask_drain(self, session: SessionId, by: By = OPERATOR) -> bool:
        """Ask a worker process to finish its jobs and exit; False if the session has ended.

        The next renewals carry the request; nothing else changes.
        """

    async def sessions(self) -> list[SessionRecord]:
        """List sessions, the newest first."""


class Locks(Protocol):
    """Verbs about named locks."""

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        """Take a lock for a session, or for its attempt with this token; None: it was taken.

        Otherwise return the present holder. Taking a lock that the caller already holds succeeds.

        A lock is valid only while its session is open and within its lease and, with a token, while
        that attempt is the job's present one; after that the next caller can take it. The lock of
        an attempt that was ended from outside lingers, as its slot does, until the worker reports
        that the handler has stopped, and at most for one lease. A caller whose own session or
        attempt has ended cannot take a lock: the answer names the caller itself.
        """

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Release a lock; False if this holder does not have it (any more)."""

    async def locks(self) -> list[LockHolder]:
        """List the holders of all valid locks, in order of name."""


class Contracts(Protocol):
    """Verbs about the contracts of services, and about the job types of their workers."""

    async def put_contract(self, new: NewContract, by: By = OPERATOR) -> ContractRecord | None:
        """Store a contract as the next record; keep the latest hundred and the deployed one.

        None, and nothing is stored, if the latest record is not the one that the caller knows. A
        repeated call finds what the first has stored. An acceptance gets an entry in the audit.
        """

    async def contracts(
        self, service: str | None = None, limit: int = KEPT_CONTRACTS
    ) -> list[ContractRecord]:
        """Return stored contracts, of one service or of all, by service, the latest first."""

    async def declare_types(self, types: Sequence[DeclaredType]) -> None:
        """Store what workers declare about types; unclaimed jobs get their hooks and secrets."""

    async def declared_types(self) -> list[DeclaredType]:
        """Return what is declared about job types, by service and type."""


class Tokens(Protocol):
    """Verbs about the tokens of the HTTP API; see `trellis.core.access`."""

    async def put_token(self, new: NewToken, by: By = OPERATOR) -> TokenRecord:
        """Store a token; a repeated call returns what the first has stored."""

    async def token(self, token_id: str) -> TokenRecord | None:
        """Return a token by its id, also an expired or revoked one."""

    async def tokens(self) -> list[TokenRecord]:
        """Return all tokens, the newest first."""

    async def revoke_token(self, token_id: str, by: By = OPERATOR) -> TokenRecord | None:
        """End a token at once; a revoked one does not change. None: there is no such token."""


class Maintenance(Protocol):
    """Verbs for the upkeep of a store; workers call most of them."""

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at.

        Lapsed sessions, lost attempts, overdue jobs, and members of batches that are to be
        cancelled and were not asked yet.
        """

    async def promote(self, limit: int) -> int:
        """Make jobs claimable whose time has come; end lingering that is over.

        Return how many jobs, slots and locks changed. No version changes.
        """

    async def next_due(self) -> Instant | None:
        """Return the earliest run time among the waiting jobs that `promote` has yet to move."""

    async def prune(self, limit: int) -> int:
        """Remove ended jobs that retention no longer keeps, leaving a removal record for each.

        Those of a service that archives go into its queue instead (`Archive`). Sessions are removed
        `KEEP_SESSIONS` after their end; `limit` and the answer count them too, and the name of the
        worker is kept while there are jobs as old. Removal records stay for `KEEP_REMOVALS`, codes
        and sessions of logins for `KEEP_LOGINS` after their end, also revoked ones.
        """

    async def prune_audit(self, keep: Micros, limit: int) -> int:
        """Remove the oldest entries of the audit that are older than this; return how many."""

    async def migrate(self, *, dry_run: bool = False, by: By | None = None) -> Migration:
        """Bring the schema up to date; with `dry_run` change nothing, return what would run.

        With `by`, an operator asks for it, and the audit gets an entry if anything was missing.
        """

    async def health(self) -> Health:
        """Report the kind of engine, its durability, and problems."""


class Reads(Protocol):
    """Verbs that change nothing."""

    async def now(self) -> Instant:
        """Return the engine's time."""

    async def catch_up(self) -> None:
        """Wait until reads and claims see everything that was committed before this call.

        Reads see what this engine object has committed without it.
        """

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs; for ids without a job, report which were removed."""

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""

    async def count(self, where: JobFilter, *group_by: GroupBy) -> Counts:
        """Count matching jobs, per combination of these groups; without groups, all together."""

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job, oldest first, journalled notes included."""

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation of a job ended, oldest first."""

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt reported about itself."""

    async def items(self, job_id: JobId) -> list[ItemEntry]:
        """Return the items of all attempts of a job, in order of claim, phase and name."""

    async def ahead(self, job_id: JobId, types: Sequence[str], limit: int) -> dict[Names, int]:
        """Count the claimable jobs of these types that a claim takes before this one, by lane.

        Types are written as service/type; jobs in paused queues do not count. At most `limit` jobs
        of one priority are counted in each service, queue and type.
        """

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines numbered above `after`, oldest first."""

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that has a holder or a waiting job, in order of key."""

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""

    async def facts(self, ids: Sequence[JobId]) -> dict[JobId, JobFacts]:
        """Return facts about these jobs; ids without a job are left out."""

    async def identify(self, sessions: Sequence[SessionId]) -> dict[SessionId, WorkerName]:
        """Return the worker processes of sessions, ended and removed ones too."""

    async def rates(self, limit: int = RATE_EVENTS) -> Rates:
        """Return how many attempts began and failed recently, how long they took, what waits.

        Reads at most about `limit` of the latest events.
        """

    async def drain_changes(self, limit: int = 20) -> list[DrainChange]:
        """Return what `set_drain` changed, the latest first; it says what is in force."""

    async def audit(
        self, where: AuditFilter, *, after: int | None = None, limit: int = 50
    ) -> list[AuditEntry]:
        """Return what operators changed, the latest first; `after`: before this number."""

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield a topic when something may have happened to it.

        `ready`: a job may start; `settled`: a job ended; `asked`: an attempt is being cancelled.
        """


class Archive(Protocol):
    """Verbs about jobs that are archived before retention removes them."""

    async def declare_archive(self, service: str, by: By) -> bool:
        """Switch the archive of a service on if it was never switched; False: it was."""

    async def set_archive(self, service: str, *, on: bool, by: By = OPERATOR) -> bool:
        """Let `prune` queue the expired jobs of a service, or remove them; False: it does so."""

    async def archivable(self, service: str, limit: int) -> list[JobRecord]:
        """Return the first expired jobs in the queue, by creation; forget those that ran again."""

    async def remove_archived(self, archived: Sequence[Archived]) -> int:
        """Remove jobs that are still as they were archived, as `prune` does; return how many."""

    async def note_archive(self, service: str, error: str | None) -> None:
        """Record that the archiver of a service failed, or that it works; for displays."""

    async def archives(self) -> list[ArchiveState]:
        """Return the archives of all services, in order of service."""


class Feed(Protocol):
    """The verb that reads all events of all jobs."""

    async def changes(self, after: str | None = None, limit: int = 1000) -> Changes | Expired:
        """Return up to `limit` events after a cursor in commit order, without gaps.

        None: from the first event that is kept; "now": from here on, no event. The cursor of the
        answer says where to go on, also after restarts. Raises `CursorInvalid`. On PostgreSQL, two
        transactions that change a job at the same moment may appear in either order.
        """


class Engine(
    Jobs,
    Batches,
    Ordering,
    Sessions,
    Locks,
    Limits,
    Schedules,
    Dependencies,
    Contracts,
    Tokens,
    Maintenance,
    Archive,
    Reads,
    Feed,
    Protocol,
):
    """A store of jobs."""

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""

    async def open(self) -> None:
        """Connect; bring an embedded store up to this version's schema. Opening twice is fine."""

    async def close(self) -> None:
        """Release all resources; calls that still wait raise `EngineClosed`."""
