"""A projection: a SQL store whose rows come from the events of another store, in their order.

What an engine may offer beside the port. No rule of the lifecycle is applied here: an event carries
the head after it. A page of changes is stored in one transaction together with the place in the
stream where it ends, so a page that is repeated, or that two processes store, is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from trellis.core.audit import By, Change
from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import Fence, JobId, JobRecord
from trellis.core.policy import Policy
from trellis.core.states import State
from trellis.engines.contracts import DeclaredType
from trellis.engines.values import NoteBody, SessionRecord


class ProjectedEvent(NamedTuple):
    """An event of a job, and the job after it. Its row is its number in the projection, too."""

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

    row: int
    id: JobId
    state: State
    at: Instant


class ProjectedAudit(NamedTuple):
    """An entry of the audit; its number rises with each entry."""

    number: int
    at: Instant
    change: Change
    by: By


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
    | Presence
    | SessionRecord
    | DeclaredType
)


class Projection(Protocol):
    """The write side of a projection."""

    async def place(self, stream: str) -> int:
        """Return the sequence of the last message of a stream that is stored here; 0: none."""

    async def project(
        self, stream: str, before: int, after: int, changes: Sequence[Projected]
    ) -> bool:
        """Store the changes between two places; False: nothing was stored.

        Then `before` is not the present place: another process stored them, or some are missing.
        """

    async def erase(self) -> None:
        """Remove everything that was projected: the next pages begin at the first message."""

    async def presences(self, since: Instant) -> list[Presence]:
        """Return the worker processes that were heard of since then, by service, type and name."""


@runtime_checkable
class CanProject(Protocol):
    """An engine whose tables can be a projection."""

    def projection(self) -> Projection:
        """Return the write side."""
