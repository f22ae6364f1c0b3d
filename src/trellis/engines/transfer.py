"""The transfer of jobs from one store to another: what an engine may offer beside the port.

A `Sender` seals its store before it returns any job: from then on no process can change anything in
it. A `Receiver` stores a parcel whole or not at all, in one transaction with the progress of the
transfer. So after a crash at any moment, a job can run in one store only and is stored there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from trellis.core.job import JobId

#: The columns of one stored row, in the order that `Parcel` names.
Row: TypeAlias = Sequence[Any]

_SHOWN: Final = 5


class Seal(NamedTuple):
    """The mark of a store whose jobs go to another."""

    #: Names the transfer in both stores.
    id: str
    #: The identity of the database that receives the jobs, and its address for display.
    instance: str
    address: str
    is_finished: bool


class Busy(NamedTuple):
    """What prevents the sealing of a store: the number of each."""

    active: int
    sessions: int
    lingering: int


class SentJob(NamedTuple):
    """A job as accepted; `row` is its number at the sender."""

    row: int
    id: JobId
    service: str
    queue: str
    type: str
    priority: int
    #: JSON text.
    policy: str
    schema_version: int
    created_at: int
    payload: str
    request_id: str | None
    traceparent: str
    tracestate: str | None
    deadline_at: int | None
    key: str | None
    key_hash: str | None
    tags: str | None
    config: str | None
    expect: str | None
    clone_of: str | None


class SentHead(NamedTuple):
    """The head of a waiting job."""

    row: int
    run_at: int
    state: str
    version: int
    attempt: int
    claims: int
    generation: int
    crashes: int
    blocked: bool
    suspect: bool
    claimed_at: int | None
    asked_at: int | None
    look_at: int | None
    key_hash: str | None
    dedupe: str | None
    error: str | None
    #: The job was claimed before and still holds its slot of the key.
    holds: bool


class Parcel(NamedTuple):
    """Some jobs in creation order with all their rows; each row begins with the job's number.

    An outline has only jobs, heads and marks: enough to find out what the receiver must refuse.
    """

    #: The number of the last job of the previous parcel, and of the last one of this parcel.
    after: int
    last: int
    jobs: Sequence[SentJob]
    heads: Sequence[SentHead]
    #: Idempotency marks: job, mark.
    marks: Sequence[Row]
    #: generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
    #: error, result, keep_until
    outcomes: Sequence[Row] = ()
    #: version, kind, state, at, attempt, session, token, data
    events: Sequence[Row] = ()
    #: claim, began_at, seen_at, progress, phase
    notes: Sequence[Row] = ()
    #: name, status, detail
    items: Sequence[Row] = ()
    #: at, claim, level, message, fields
    logs: Sequence[Row] = ()


class Clash(NamedTuple):
    """A job that the receiver cannot store, and the reason."""

    job_id: JobId
    why: str


def refusal(clashes: Sequence[Clash]) -> str:
    """Return which jobs the target cannot store, and what to do about it."""
    some = "; ".join(f"{clash.job_id}: {clash.why}" for clash in clashes[:_SHOWN])
    more = "; ..." if len(clashes) > _SHOWN else ""
    return (
        f"The target cannot store {len(clashes):,} of the jobs ({some}{more}). Remove or finish "
        "the conflicting jobs there, or move into another database, or into a separate schema "
        "with ?schema=NAME."
    )


class Compared(NamedTuple):
    """Which jobs of a parcel a receiver already has, and which it cannot store."""

    known: frozenset[JobId]
    clashes: tuple[Clash, ...]


class Sender(Protocol):
    """Returns the jobs of its store."""

    async def seal_of(self) -> Seal | None:
        """Return the seal, if the store has one."""

    async def seal(self, instance: str, address: str) -> Seal | Busy:
        """Forbid every change from now on; refuse while workers use the store."""

    async def parcel(self, after: int, limit: int, states: Sequence[str], *, whole: bool) -> Parcel:
        """Return the next jobs in these states, or their outline; an empty parcel at the end."""

    async def count_up_to(self, last: int, states: Sequence[str]) -> int:
        """Return how many jobs in these states have a number up to this one."""

    async def finish(self) -> None:
        """Record that every job was transferred."""


class Receiver(Protocol):
    """Stores the jobs of another store."""

    async def instance(self) -> str:
        """Return the identity of this database."""

    async def cursor(self, move: str) -> int:
        """Return the number of the last job that was stored; 0 before the first."""

    async def compare(self, parcel: Parcel) -> Compared:
        """Return which jobs are already stored, and which cannot be."""

    async def receive(self, move: str, parcel: Parcel) -> int:
        """Store a parcel together with the progress; return the number of new jobs."""

    async def hand_out(self) -> None:
        """Give the free slots of all keys to their waiting jobs."""


@runtime_checkable
class CanSend(Protocol):
    """An engine whose jobs can be transferred to another."""

    def sender(self) -> Sender:
        """Return the sending side of a transfer."""


@runtime_checkable
class CanReceive(Protocol):
    """An engine that can receive the jobs of another."""

    def receiver(self) -> Receiver:
        """Return the receiving side of a transfer."""
