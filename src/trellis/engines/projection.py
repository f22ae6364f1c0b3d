"""A projection: a SQL store whose rows come from the events of another store, in their order.

What an engine may offer beside the port. No rule of the lifecycle is applied here: an event carries
the head after it. A page of changes is stored in one transaction together with the place in the
stream where it ends, so a page that is repeated, or that two processes store, is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from trellis.core.audit import By, Change
from trellis.core.batches import Batch
from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import Fence, FollowsOn, JobId, JobRecord
from trellis.core.policy import Policy
from trellis.core.states import State
from trellis.engines.contracts import DeclaredType
from trellis.engines.schedules import SlotRecord
from trellis.engines.values import DueJob, NoteBody, SessionRecord

#: Raised when the same messages lead to other rows: a projection with another number is made again.
SCHEMA: Final = 1


class Place(NamedTuple):
    """How much of a stream a projection has."""

    #: Of the last message that is stored here; 0: none.
    sequence: int
    #: The identity of the stream: one that was made again has another, and other messages.
    stream_id: int
    schema: int = SCHEMA
    #: When the projection was begun.
    rebuilt_at: Instant = 0
    #: When the newest of its messages was stored, by the clock of the server; 0: it has none.
    newest_at: Instant = 0


class ProjectedEvent(NamedTuple):
    """An event of a job, and the job after it. Its row is its number in the projection, too."""

    #: Rises with each message of the store; the cursor of the feed, where that has one number.
    number: int
    event: Event
    record: JobRecord
    #: The policy of its type as its creator knew it.
    policy: Policy
    started_at: Instant | None = None
    #: JSON text: in `completed` the result, in `resolved` the payload that was handed on.
    result: str | None = None
    #: Only in `created`.
    idempotency_key: str | None = None
    #: Only in `created`: it waits for other jobs, until an event `resolved`.
    is_dependent: bool = False


class ProjectedNote(NamedTuple):
    """A note of an attempt; its number rises with each note of the store."""

    number: int
    row: int
    at: Instant
    claim: int
    fence: Fence
    body: NoteBody
    #: A late result is an event of the journal.
    event: Event | None = None


class ProjectedRemoval(NamedTuple):
    """The end of all rows of a job."""

    number: int
    row: int
    id: JobId
    service: str
    type: str
    state: State
    at: Instant


class ProjectedAudit(NamedTuple):
    """An entry of the audit; its number rises with each entry."""

    number: int
    at: Instant
    change: Change
    by: By


class ProjectedBatch(NamedTuple):
    """A batch as it is now; None: it was removed."""

    id: str
    batch: Batch | None
    #: The batches in it.
    inner: tuple[str, ...] = ()


class ProjectedMember(NamedTuple):
    """A job is a member of a batch from here on."""

    batch: str
    job: JobId
    #: It stands for a new job that was not created.
    is_linked: bool


class ProjectedBond(NamedTuple):
    """A job waits, or has waited, for this one; `ended`: how it ended, in this generation."""

    prerequisite: JobId
    on: FollowsOn
    ended: State | None
    generation: int


class ProjectedLinks(NamedTuple):
    """All jobs that a job waits for, or has waited for."""

    job: JobId
    bonds: tuple[ProjectedBond, ...]


class HeldSlot(NamedTuple):
    """A slot of a key that a job holds; with a fence its attempt holds it."""

    job: JobId
    #: In the order of creation; it names the job once that is removed.
    order: int
    fence: Fence | None
    linger_until: Instant | None


class ProjectedKey(NamedTuple):
    """All slots of a key that are held."""

    key_hash: str
    slots: tuple[HeldSlot, ...]


class ProjectedSlot(NamedTuple):
    """A decided slot of a schedule."""

    service: str
    schedule: str
    record: SlotRecord


class ProjectedArchiving(NamedTuple):
    """An expired job waits for the archive of its service, as it was with this version."""

    row: int
    version: int
    service: str
    since: Instant


class Presence(NamedTuple):
    """A worker process said that it works on a type."""

    service: str
    type: str
    instance: str
    at: Instant
    concurrency: int | None = None
    version: str | None = None


Projected: TypeAlias = (
    ProjectedEvent
    | ProjectedNote
    | ProjectedRemoval
    | ProjectedAudit
    | ProjectedBatch
    | ProjectedMember
    | ProjectedLinks
    | ProjectedKey
    | ProjectedSlot
    | ProjectedArchiving
    | Presence
    | SessionRecord
    | DeclaredType
)


class KnownJob(NamedTuple):
    """A job as a projection has it."""

    record: JobRecord
    #: How many events of each kind are in the record, notes not counted.
    events: Mapping[str, int]
    #: When the last of them was.
    at: Instant


class PastRetention(NamedTuple):
    """An ended job that retention no longer keeps, as it was with this version."""

    job_id: JobId
    version: int
    service: str


class Projection(Protocol):
    """The write side of a projection, and what only a projection answers."""

    async def prepare(self, streams: Sequence[str]) -> None:
        """Add the views, for a projection of these streams.

        Raise `ConfigurationError` if the store has jobs of its own, or of other streams.
        """

    async def place(self, stream: str) -> Place | None:
        """Return how much of a stream is stored here; None: nothing."""

    async def project(
        self, stream: str, before: Place, after: Place, changes: Sequence[Projected]
    ) -> bool:
        """Store the changes between two places; False: nothing was stored.

        Then `before` is not the present place: another process stored them, or some are missing.
        """

    async def erase(self, stream: str | None = None, at: Place | None = None) -> bool:
        """Remove everything that was projected: the next pages begin at the first message.

        With a place only if the stream is still there; otherwise another process was first.
        """

    async def due(self, now: Instant, limit: int) -> list[DueJob]:
        """Return the jobs that maintenance must look at, by the time of the store of the events.

        The clock of the projection may be that of another machine, and decides nothing.
        """

    async def promote(self, now: Instant, limit: int) -> int:
        """Count jobs whose time has come as claimable; return how many there were.

        A job with a key is claimable if it holds a slot.
        """

    async def known(self, ids: Sequence[JobId]) -> list[KnownJob]:
        """Return those of these jobs that are here, without the last ones if they are large."""

    async def past_retention(self, now: Instant, limit: int) -> list[PastRetention]:
        """Return jobs that retention no longer keeps, the longest overdue first.

        Without those that others need: jobs that follow them, and batches.
        """

    async def presences(self, since: Instant) -> list[Presence]:
        """Return the worker processes that were heard of since then, by service, type and name."""


class Lag(NamedTuple):
    """How far a projection is behind one of its streams."""

    stream: str
    messages: int
    #: Since when the first of these messages waits.
    seconds: float


class Keeper(Protocol):
    """What the program that keeps a projection answers about itself."""

    async def lag(self) -> list[Lag]:
        """Return how far the projection is behind each of its streams."""


@runtime_checkable
class IsProjected(Protocol):
    """An engine some of whose reads come from a projection that another program keeps."""

    async def projection_lag(self) -> list[Lag]:
        """Return how far that projection is behind each of its streams."""


@runtime_checkable
class CanProject(Protocol):
    """An engine whose tables can be a projection."""

    def projection(self) -> Projection:
        """Return the write side."""
