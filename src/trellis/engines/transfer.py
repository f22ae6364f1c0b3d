"""Carrying jobs from one store to another: what an engine may offer beside the port.

A `Sender` seals its store before it hands anything out: from then on nothing in it can be changed,
by anybody. A `Receiver` stores a parcel whole or not at all, together with how far the move has
come. So whatever dies, and whenever, a job can be run in one place only and is stored there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from trellis.core.job import JobId
from trellis.engines.sql.rows import Row

_SHOWN: Final = 5


class Seal(NamedTuple):
    """A store that was given up for another."""

    #: Names the move, here and there.
    id: str
    #: What names the database the jobs go to, and its address for people.
    instance: str
    address: str
    is_finished: bool


class Busy(NamedTuple):
    """What keeps a store from being sealed: numbers of each."""

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
    """Where a waiting job stands."""

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
    #: It was claimed before and has kept its key's slot since.
    holds: bool


class Parcel(NamedTuple):
    """Some jobs in creation order with all that is theirs; each row begins with the job's number.

    An outline has no more than jobs, heads and marks: enough to see whether there is room.
    """

    #: The number of the last job of the parcel before, and of the last of this one.
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
    """A job for which there is no room at the receiver, and why."""

    job_id: JobId
    why: str


def refusal(clashes: Sequence[Clash]) -> str:
    """Say which jobs cannot be taken in, and what to do about it."""
    some = "; ".join(f"{clash.job_id}: {clash.why}" for clash in clashes[:_SHOWN])
    more = "; ..." if len(clashes) > _SHOWN else ""
    return (
        f"The target cannot take in {len(clashes):,} of the jobs ({some}{more}). Remove or finish "
        "there what stands in the way, or move into another database, or into a schema of its own "
        "with ?schema=NAME."
    )


class Compared(NamedTuple):
    """What a receiver already has of a parcel."""

    known: frozenset[JobId]
    clashes: tuple[Clash, ...]


class Sender(Protocol):
    """Hands out what its store has."""

    async def seal_of(self) -> Seal | None:
        """Return the seal, if the store has one."""

    async def seal(self, instance: str, address: str) -> Seal | Busy:
        """Let nobody change anything from now on; refuse while somebody works here."""

    async def parcel(self, after: int, limit: int, states: Sequence[str], *, whole: bool) -> Parcel:
        """Return the next jobs in these states, or their outline; none at the end."""

    async def count_up_to(self, last: int, states: Sequence[str]) -> int:
        """Return how many jobs in these states have a number up to this one."""

    async def finish(self) -> None:
        """Note that everything was carried over."""


class Receiver(Protocol):
    """Takes in what another store had."""

    async def instance(self) -> str:
        """Return what names this database among all."""

    async def cursor(self, move: str) -> int:
        """Return the number of the last job that was taken in; 0 before the first."""

    async def compare(self, parcel: Parcel) -> Compared:
        """Tell what is here already, and what cannot be taken in."""

    async def receive(self, move: str, parcel: Parcel) -> int:
        """Store a parcel and how far the move is, together; return how many jobs were new."""

    async def hand_out(self) -> None:
        """Give the free slots of all keys to their waiting jobs."""


@runtime_checkable
class CanSend(Protocol):
    """An engine whose jobs can be carried elsewhere."""

    def sender(self) -> Sender:
        """Return the way out."""


@runtime_checkable
class CanReceive(Protocol):
    """An engine that takes in jobs of another."""

    def receiver(self) -> Receiver:
        """Return the way in."""
