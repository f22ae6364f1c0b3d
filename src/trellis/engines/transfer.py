"""The transfer of jobs from one store to another: what an engine may offer beside the port.

An `Exporter` seals its store before it returns any job: from then on no process can change
anything in it. An `Importer` stores a batch whole or not at all, in one transaction with the
progress of the transfer. So after a crash at any moment, a job can run in one store only and is
stored there once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from trellis.core.audit import By, Change
from trellis.core.job import JobId

#: The columns of one stored row, in the order that `JobBatch` names.
Row: TypeAlias = Sequence[Any]
#: What is transferred beside jobs: the audit, batches, and the ledger of one schedule.
Kind: TypeAlias = Literal["audit", "batches", "slots"]

_SHOWN: Final = 5
#: Characters of payload after which a batch takes no more jobs.
_BATCH_CHARACTERS: Final = 4_000_000


class Seal(NamedTuple):
    """The mark of a store whose jobs are moved to another."""

    #: Names the transfer in both stores.
    id: str
    #: The identity of the target database, and its address for display.
    instance: str
    address: str
    is_finished: bool


def seal_warnings(seal: Seal | None) -> Iterator[str]:
    """Say that a store was moved: its jobs look as if they waited, and no worker will run them."""
    if seal is None:
        return
    if seal.is_finished:
        yield (
            f"The jobs of this store were moved to {seal.address}. Nothing here can be changed any "
            "more, and what is listed as waiting runs there. Use that URL instead."
        )
    else:
        yield (
            f"A move of the jobs of this store to {seal.address} was begun and has not ended. "
            "Nothing here can be changed any more. Run the same `trellis move` again to finish it."
        )


class Busy(NamedTuple):
    """What prevents the sealing of a store: the number of each."""

    active: int
    sessions: int
    lingering: int


class ExportedJob(NamedTuple):
    """A job as accepted; `row` is its number in the source."""

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
    dedupe: str | None
    dedupe_while: str | None
    dedupe_until: int | None
    attempts: int | None
    timeout: int | None
    relations: str | None


class ExportedHead(NamedTuple):
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
    dedupe_unfinished: bool | None
    error: str | None
    #: JSON text: the policy that the last claim declared.
    policy: str | None
    #: The job was claimed before and still holds its slot of the key.
    holds: bool


class JobBatch(NamedTuple):
    """Some jobs in creation order with all their rows, which begin with the job's number.

    An outline has only jobs, heads and marks: enough to find out what the target must refuse.
    """

    #: The number of the last job of the previous batch, and of the last one of this batch.
    after: int
    last: int
    jobs: Sequence[ExportedJob]
    heads: Sequence[ExportedHead]
    #: Idempotency marks: job, mark.
    marks: Sequence[Row]
    #: generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
    #: error, result, keep_until, policy (JSON text)
    outcomes: Sequence[Row] = ()
    #: version, kind, state, at, attempt, session, token, data
    events: Sequence[Row] = ()
    #: claim, began_at, seen_at, progress, phase
    notes: Sequence[Row] = ()
    #: claim, phase, name, status, detail
    items: Sequence[Row] = ()
    #: at, claim, level, message, fields
    logs: Sequence[Row] = ()
    #: The jobs they wait or waited for: id, follows_on, ended, generation
    links: Sequence[Row] = ()
    #: Their batches: id, linked, state, succeeded, finished_at
    members: Sequence[Row] = ()
    #: The worker processes that ran them: session, name, host, pid.
    workers: Sequence[Row] = ()


def fitting(page: Sequence[Row]) -> list[int]:
    """Return the numbers of the jobs that fit into one batch; at least one.

    A page has the number of each job and the size of its payload.
    """
    sizes = accumulate(size for _, size in page)
    return [
        number
        for (number, own), size in zip(page, sizes, strict=True)
        if size - own < _BATCH_CHARACTERS
    ]


class Clash(NamedTuple):
    """A job that the target cannot store, and the reason."""

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
    """Which jobs of a batch the target already has, and which it cannot store."""

    known: frozenset[JobId]
    clashes: tuple[Clash, ...]


class Exporter(Protocol):
    """Returns the jobs of its store."""

    async def seal_of(self) -> Seal | None:
        """Return the seal, if the store has one."""

    async def seal(self, instance: str, address: str) -> Seal | Busy:
        """Forbid every change from now on; refuse while workers use the store."""

    async def batch(
        self, after: int, limit: int, states: Sequence[str], *, whole: bool
    ) -> JobBatch:
        """Return the next jobs in these states, or their outline; an empty batch at the end.

        Members that their batch needs go along in any state: it has not finished, or its fan-in job
        may still read them.
        """

    async def counts(self, states: Sequence[str], last: int | None = None) -> Mapping[str, int]:
        """Return how many jobs `batch` returns in each state, up to the one with this number."""

    async def rows(self, kind: Kind, after: int, limit: int, *of: str) -> Sequence[Row]:
        """Return the next rows of a kind: number, then the columns as they are stored.

        The number of a slot is its moment; `of` is the service and name of its schedule.
        """

    async def finish(self) -> None:
        """Record that every job was transferred."""


class Importer(Protocol):
    """Stores the jobs of another store."""

    @property
    def is_thorough(self) -> bool:
        """Whether `compare` needs whole batches: the store may refuse a job for its history."""

    async def instance(self) -> str:
        """Return the identity of this database."""

    async def sealed_for(self) -> str | None:
        """Return where the jobs of this database were moved to; None: it takes jobs."""

    async def cursor(self, move: str) -> int:
        """Return the number of the last job that was stored; 0 before the first."""

    async def compare(self, batch: JobBatch) -> Compared:
        """Return which jobs are already stored, and which cannot be."""

    async def known(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Return which of these jobs are stored, or were and have been removed since."""

    async def import_batch(self, move: str, batch: JobBatch) -> int:
        """Store a batch together with the progress; return the number of new jobs."""

    async def import_rows(self, kind: Kind, move: str, after: int, rows: Sequence[Row]) -> None:
        """Store rows of a kind together with the progress, as `import_batch` does.

        A batch that has not finished is stored without its seal, so that it does not finish before
        all its members are there.
        """

    async def record(self, move: str, change: Change, by: By) -> None:
        """Store an entry of the audit about this move; nothing if it has one already."""

    async def assign_slots(self) -> None:
        """Give the free slots of all keys to their waiting jobs."""


@runtime_checkable
class CanExport(Protocol):
    """An engine whose jobs can be transferred to another."""

    def exporter(self) -> Exporter:
        """Return the export side of a transfer."""


@runtime_checkable
class CanImport(Protocol):
    """An engine that can store the jobs of another."""

    def importer(self) -> Importer:
        """Return the import side of a transfer."""
