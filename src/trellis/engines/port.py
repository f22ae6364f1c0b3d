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
- `watch` gives hints, never truth: everything works without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from trellis.core.events import Event
from trellis.core.job import Fence, JobId, NewJob, SessionId
from trellis.core.lifecycle import Transition
from trellis.core.spans import Instant, Micros
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
    LogEntry,
    Note,
    NoteResult,
    Outcome,
    Page,
    QueueSettings,
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

    async def health(self) -> Health:
        """Say what this engine is, how durable, and what is wrong with it."""

    async def now(self) -> Instant:
        """Return the engine's time."""

    async def catch_up(self) -> None:
        """Wait until reads see all that was committed before this call."""

    # -- the path of a job ---------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        """Admit and store new jobs, each on its own; answers come in the order asked."""

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
        self, session: SessionId, held: Sequence[Fence], stopped: Sequence[Fence] = ()
    ) -> Renewed | SessionLost:
        """Extend the lease; tell the engine what is held and which ended handlers have stopped."""

    async def close_session(self, session: SessionId) -> None:
        """End a session in order; what it still holds is due as lost, what lingers lingers on."""

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease is over; False if it is alive. Its claims are due as lost."""

    async def sessions(self) -> list[SessionRecord]:
        """List sessions, the newest first."""

    # -- upkeep --------------------------------------------------------------------------------

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at: lapsed sessions, lost attempts, overdue jobs."""

    async def promote(self, limit: int) -> int:
        """Make jobs whose time has come claimable; end lingering slots. Moves no version."""

    async def prune(self, limit: int) -> int:
        """Remove ended jobs that retention no longer keeps, leaving a removal record each."""

    # -- reading -------------------------------------------------------------------------------

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs."""

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""

    async def count(self, where: JobFilter, group_by: GroupBy) -> Counts:
        """Count matching jobs per group."""

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
        """Tell for each id whether retention removed that job."""

    # -- queues --------------------------------------------------------------------------------

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""

    async def set_queue(self, settings: QueueSettings) -> None:
        """Pause, drain or reopen a queue."""

    # -- hints ---------------------------------------------------------------------------------

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield a topic now and then when something may have happened to it."""
