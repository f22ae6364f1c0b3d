"""The engine port: everything Trellis asks of a store, as five protocols.

`Engine` is `Jobs` (write jobs), `Sessions` (leases of worker processes), `Locks`, `Maintenance` and
`Reads`, and can be opened and closed. Verbs work on batches and take and return plain values.

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
  depend on the time carry `now` or `as_of`.
- A lock is a row that is valid only while its holder is; see `Locks.take_lock`.
- `watch` yields hints. Everything works without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from trellis.core.durations import Instant, Micros
from trellis.core.events import Event
from trellis.core.job import Fence, JobId, NewJob, SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.values import (
    Activity,
    Capabilities,
    Claimed,
    CommitResult,
    Counts,
    CreateResult,
    Demand,
    Due,
    DueKind,
    GroupBy,
    Health,
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


class Jobs(Protocol):
    """Verbs that write jobs and the settings of their queues."""

    async def create(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        """Admit and store new jobs, each separately; return one answer per job, in order."""

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
        """Claim up to `limit` due jobs for a session: by priority, then in creation order."""

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, each separately, guarded by version and fence; one answer each."""

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Store progress, items, log lines and signs of life of attempts whose fence holds."""

    async def remove(self, ids: Sequence[JobId]) -> list[Removal]:
        """Remove ended jobs at once, dead letters too, as `prune` does; refuse live ones."""

    async def set_queue(self, settings: QueueSettings) -> None:
        """Pause, drain or reopen a queue."""


class Sessions(Protocol):
    """Verbs about worker processes and their leases."""

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session; its lease covers every job it will claim."""

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        busy: int = 0,
    ) -> Renewed | SessionLost:
        """Extend the lease, and compare what the worker holds with what the engine has stored.

        `stopped` names ended attempts whose handlers have stopped: their slots and locks stop
        lingering. `busy` is the number of handlers that run now, for displays.
        """

    async def close_session(self, session: SessionId) -> None:
        """End a session gracefully: its claims are due as lost, lingering slots linger on."""

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease has lapsed; its claims are due as lost. False: it is alive."""

    async def ask_drain(self, session: SessionId) -> bool:
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


class Maintenance(Protocol):
    """Verbs for the upkeep of a store; workers call most of them."""

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at: lapsed sessions, lost attempts, overdue jobs."""

    async def promote(self, limit: int) -> int:
        """Make jobs claimable whose time has come; end lingering that is over.

        Return how many jobs, slots and locks changed. No version changes.
        """

    async def next_due(self) -> Instant | None:
        """Return the earliest run time among the waiting jobs that `promote` has yet to move."""

    async def prune(self, limit: int) -> int:
        """Remove ended jobs that retention no longer keeps, leaving a removal record for each.

        Also remove sessions that ended `KEEP_SESSIONS` ago; `limit` and the answer count both.
        """

    async def migrate(self, *, dry_run: bool = False) -> Migration:
        """Bring the schema up to date; with `dry_run` change nothing, return what would run."""

    async def health(self) -> Health:
        """Report the kind of engine, its durability, and problems."""


class Reads(Protocol):
    """Verbs that change nothing."""

    async def now(self) -> Instant:
        """Return the engine's time."""

    async def catch_up(self) -> None:
        """Wait until reads see everything that was committed before this call."""

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

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines numbered above `after`, oldest first."""

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that has a holder or a waiting job, in order of key."""

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield a topic when something may have happened to it."""


class Engine(Jobs, Sessions, Locks, Maintenance, Reads, Protocol):
    """A store of jobs."""

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""

    async def open(self) -> None:
        """Connect; bring an embedded store up to this version's schema. Opening twice is fine."""

    async def close(self) -> None:
        """Release all resources; calls that still wait raise `EngineClosed`."""
