"""The engine port: all that Trellis asks of a store.

Batch first; values in, values out. No verb is a word of the lifecycle: a state is changed only by
`commit`, which stores what `core.lifecycle.decide` decided, guarded by version and fence. The two
exceptions are `claim`, which is set-based in each engine and must store exactly what the rule for
`Claim` says, and key admission, where the engine gathers the facts under its own gate, `core`
decides, and the engine writes.

Promises every engine keeps, checked by `trellis.testing.conformance`:

- `create` is atomic per job and serial per key; repeating a call with the same ids stores nothing.
- `commit` stores head and event together or not at all; on a conflict it stores nothing.
- A slot is a row owned by a job, then by its attempt. Freeing one hands it to the next waiting job
  of the key in the same step.
- The engine's clock stamps and judges everything. Every answer that needs it carries `now`.
- A lock is a row that counts only while its holder does; see `take_lock`.
- `watch` gives hints, never truth: everything works without it.
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
    CrossCounts,
    Demand,
    Due,
    DueKind,
    GroupBy,
    Health,
    JobFilter,
    KeyStatus,
    Loaded,
    LockHolder,
    LockRecord,
    LogEntry,
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


class Engine(Protocol):
    """A store of jobs."""

    # -- its own life --------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""

    async def open(self) -> None:
        """Connect; bring an embedded store up to this version's schema. Opening twice is fine."""

    async def close(self) -> None:
        """Let go of everything; calls still waiting raise `EngineClosed`."""

    async def migrate(self) -> tuple[int, int]:
        """Bring the schema up to date; return the versions before and after."""

    async def missing_migrations(self) -> Sequence[tuple[int, str]]:
        """Return what `migrate` would run, numbers and scripts, in order; change nothing."""

    async def health(self) -> Health:
        """Say what this engine is, how durable, and what is wrong with it."""

    async def now(self) -> Instant:
        """Return the engine's time."""

    async def catch_up(self) -> None:
        """Wait until reads see all that was committed before this call."""

    # -- the path of a job ---------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        """Admit and store new jobs, each on its own; answers come in the order asked."""

    def create_within(
        self, connection: object, jobs: Sequence[NewJob]
    ) -> list[CreateResult] | Awaitable[list[CreateResult]]:
        """Create inside the caller's own transaction, on the caller's own connection.

        Admits exactly as `create` does, and commits nothing: the caller's commit stores the jobs
        together with the caller's rows, the caller's rollback forgets them. The engine need not be
        open. Raises `TransactionRefused` for a connection that cannot keep this promise; after any
        error nothing of the call is left and the caller's transaction goes on. The memory engine
        has no transactions: it takes anything for a connection and creates at once.
        """

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Take up to `limit` due jobs for this session: by priority, then in creation order."""

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, each on its own, guarded by the version and fence decided against."""

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Keep what attempts say about themselves, if their fence still holds."""

    # -- sessions ------------------------------------------------------------------------------

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session whose lease covers all it will claim."""

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        busy: int = 0,
    ) -> Renewed | SessionLost:
        """Extend the lease; tell the engine what is held and which ended handlers have stopped.

        `busy` is how many handlers run now: for people who look at the worker.
        """

    async def close_session(self, session: SessionId) -> None:
        """End a session in order; what it still holds is due as lost, what lingers lingers on."""

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease is over; False if it is alive. Its claims are due as lost."""

    async def sessions(self) -> list[SessionRecord]:
        """List sessions, the newest first."""

    async def ask_drain(self, session: SessionId) -> bool:
        """Ask a worker process to finish and go; False if its session is over or unknown.

        Renewals say it from now on. Nothing else changes: what the worker does is its affair.
        """

    # -- locks ---------------------------------------------------------------------------------

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        """Take a lock for a session, or for its attempt with this token; None: it is ours now.

        Otherwise the answer is who has it. Taking what one has already is fine. A lock counts only
        while its session is open and within its lease and, with a token, while that attempt is
        still the job's present one; after that it is free, and the next who asks has it. Only a
        lock of an attempt that was ended from outside lingers, as its slot does, until the worker
        reports that the handler stopped, for at most one lease. Whoever asks when over itself can
        take nothing and is answered with itself.
        """

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Give a lock back; False if it was not this holder's (any more)."""

    async def locks(self) -> list[LockRecord]:
        """List the locks that count now, in order of name."""

    # -- upkeep --------------------------------------------------------------------------------

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at: lapsed sessions, lost attempts, overdue jobs."""

    async def promote(self, limit: int) -> int:
        """Make jobs whose time has come claimable; end what has lingered. Moves no version."""

    async def next_due(self) -> Instant | None:
        """Return when the next waiting job becomes due that `promote` has yet to move."""

    async def prune(self, limit: int) -> int:
        """Remove ended jobs that retention no longer keeps, leaving a removal record each.

        And sessions that were over `KEEP_SESSIONS` ago; `limit` and the answer count both.
        """

    async def remove(self, ids: Sequence[JobId]) -> list[Removal]:
        """Remove ended jobs at once, dead letters too, as `prune` does; live ones are refused."""

    # -- reading -------------------------------------------------------------------------------

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs."""

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""

    async def count(self, where: JobFilter, group_by: GroupBy) -> Counts:
        """Count matching jobs per group."""

    async def count_by(self, where: JobFilter, groups: Sequence[GroupBy]) -> CrossCounts:
        """Count matching jobs per combination of these groups, at least one, in one look."""

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job, oldest first, notes in the journal included."""

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation of a job ended, oldest first."""

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt said about itself."""

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines numbered above `after`, oldest first."""

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that has a holder or a waiting job, in order of key."""

    async def removed(self, ids: Sequence[JobId]) -> list[bool]:
        """Tell for each id whether that job was here and was removed."""

    # -- queues --------------------------------------------------------------------------------

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""

    async def set_queue(self, settings: QueueSettings) -> None:
        """Pause, drain or reopen a queue."""

    # -- hints ---------------------------------------------------------------------------------

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield a topic now and then when something may have happened to it."""
