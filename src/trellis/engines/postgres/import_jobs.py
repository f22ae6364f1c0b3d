"""Importing the jobs of another store, one batch at a time.

A batch is stored in one transaction with the number of its last job. A move that was interrupted
continues after that number, so no job is imported twice, not even one that has ended here and was
removed since. Jobs get new numbers that rise in the order of the batches, which keeps the creation
order. A job that held its key's slot while it waited gets a slot again if one is free; all other
slots are handed out at the end, when all waiting jobs are imported. Batches are sealed then, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from trellis import failpoints
from trellis.core.audit import By, Change
from trellis.core.job import Context, JobId, NewJob
from trellis.core.policy import decode_policy
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import audit
from trellis.engines.sql.rows import Row, lane_of
from trellis.engines.sql.slots import hand_over, lock_keys
from trellis.engines.transfer import (
    Clash,
    Compared,
    ExportedHead,
    ExportedJob,
    JobBatch,
    Kind,
    refusal,
)
from trellis.errors import MoveRefused

T = TypeVar("T")
_KEYS: Final = 200
#: What stores rows that differ from the batch's in nothing but the job's number.
_PLAIN: Final = (
    "import_outcomes",
    "import_events",
    "import_notes",
    "import_items",
    "import_logs",
    "import_marks",
)


#: The statement that stores rows of a kind.
_ADD: Final[dict[Kind, str]] = {
    "audit": "audit_add",
    "batches": "import_batches",
    "slots": "import_slots",
}


class Within(Protocol):
    """Runs a verb in a separate transaction."""

    def __call__(self, verb: Callable[[Transaction], Awaitable[T]], /) -> Awaitable[T]:
        """Run it."""


class PostgresImporter:
    """Imports jobs into one database."""

    def __init__(self, within: Within, link: ServerConnection, registry: Registry) -> None:
        self._within = within
        self._link = link
        self._registry = registry

    async def instance(self) -> str:
        """Return the identity of this database."""
        return str(await self._link.value("instance"))

    async def cursor(self, move: str) -> int:
        """Return the number of the last job that was imported; 0 before the first."""
        found: int | None = await self._link.value("import_cursor", _name(move))
        return found or 0

    async def compare(self, batch: JobBatch) -> Compared:
        """Return which jobs are here already, and which cannot be imported."""
        return await self._within(lambda tx: _compare(tx, batch))

    async def import_batch(self, move: str, batch: JobBatch) -> int:
        """Store a batch together with the progress of the move; return how many jobs were new."""
        await self._registry.enter(self._link, [_as_new(job) for job in batch.jobs])
        texts = {head.policy for head in batch.heads} | {row[-1] for row in batch.outcomes}
        await self._registry.enter_policies(
            self._link, [decode_policy(text) for text in texts if text is not None]
        )
        await self._link.rows("import_begin", _name(move))
        return await self._within(lambda tx: _import_batch(tx, move, batch))

    async def import_rows(self, kind: Kind, move: str, after: int, rows: Sequence[Row]) -> None:
        """Store rows of a kind together with the progress of the move."""
        await self._link.rows("import_begin", _name(move))
        await self._within(lambda tx: _import_rows(tx, kind, move, after, rows))

    async def record(self, move: str, change: Change, by: By) -> None:
        """Store an entry of the audit about this move, once."""
        await self._link.rows("import_begin", _name(move))
        await self._within(lambda tx: _record(tx, move, change, by))

    async def assign_slots(self) -> None:
        """Give the free slots of all keys to their waiting jobs."""
        after = ""
        while True:
            rows = await self._link.rows("import_keys", after, _KEYS)
            keys = [key for (key,) in rows]
            if not keys:
                return
            await self._within(lambda tx, keys=keys: _assign_slots(tx, keys))  # type: ignore[misc]
            after = keys[-1]


async def _assign_slots(tx: Transaction, keys: Sequence[str]) -> None:
    await lock_keys(tx, keys)
    await hand_over(tx, keys)


def _name(move: str) -> str:
    return f"received/{move}"


def _as_new(job: ExportedJob) -> NewJob:
    """Return a job as far as its lane and policy are concerned."""
    return NewJob(
        id=job.id,
        service=job.service,
        type=job.type,
        queue=job.queue,
        payload="",
        policy=decode_policy(job.policy),
        context=Context(job.id, job.traceparent),
        priority=job.priority,
    )


async def _compare(tx: Transaction, batch: JobBatch) -> Compared:
    found = await tx.rows(
        "import_known",
        *_columns(
            [
                (job.id, *job[2:6], job.created_at, job.payload)  # service, queue, type, priority
                for job in batch.jobs
            ],
            7,
        ),
    )
    known = frozenset(JobId(job_id) for job_id, _ in found)
    other = [
        Clash(JobId(job_id), "another job has its id") for job_id, is_same in found if not is_same
    ]
    return Compared(known, (*other, *await _taken_marks(tx, batch, known)))


async def _taken_marks(tx: Transaction, batch: JobBatch, known: frozenset[JobId]) -> list[Clash]:
    """Return the jobs that are not here, but whose marks belong to other jobs."""
    ids = {job.row: job.id for job in batch.jobs if job.id not in known}
    once = {mark: ids[row] for row, mark in batch.marks if row in ids}
    dedupe: dict[str, JobId] = {}
    until: dict[str, int | None] = {}
    for job in batch.jobs:
        if job.dedupe is not None and job.dedupe_until is not None and job.row in ids:
            dedupe[job.dedupe], until[job.dedupe] = job.id, job.dedupe_until
    for head in batch.heads:
        if head.dedupe is not None and head.row in ids:
            dedupe[head.dedupe], until[head.dedupe] = ids[head.row], None
    if not once and not dedupe:
        return []
    taken = await tx.rows("import_taken", list(once), list(dedupe), list(until.values()))
    return [
        Clash(
            (dedupe if is_dedupe else once)[mark],
            f"job {holder} has its {'dedupe' if is_dedupe else 'idempotency'} key",
        )
        for is_dedupe, mark, holder in taken
    ]


async def _check_turn(tx: Transaction, move: str, after: int) -> None:
    if await tx.value("import_turn", _name(move)) != after:
        raise MoveRefused(
            "Another `trellis move` of the same database is running, or has just ended. Let it "
            "finish, then run this again to check that all jobs are there."
        )


async def _import_rows(
    tx: Transaction, kind: Kind, move: str, after: int, rows: Sequence[Row]
) -> None:
    await _check_turn(tx, move, after)
    await tx.run_many(_ADD[kind], [tuple(map(_clean, row[1:])) for row in rows])
    if kind == "batches":
        parents = [(batch, parent) for _, batch, *_, parent, _ in (row[:8] for row in rows)]
        await tx.run_many("import_parents", [pair for pair in parents if pair[1] is not None])
    await tx.rows("import_advance", _name(move), rows[-1][0])


async def _record(tx: Transaction, move: str, change: Change, by: By) -> None:
    if await tx.value("import_turn", _name(move)):
        return
    await tx.read_clock()
    await audit.record(tx, change, by)
    await tx.rows("import_advance", _name(move), 1)


async def _import_batch(tx: Transaction, move: str, batch: JobBatch) -> int:
    await _check_turn(tx, move, batch.after)
    # Before any row of the jobs is locked: the lock of a key always comes first.
    await lock_keys(tx, (head.key_hash for head in batch.heads if head.holds))
    compared = await _compare(tx, batch)
    if compared.clashes:
        raise MoveRefused(refusal(compared.clashes))
    new = [job for job in batch.jobs if job.id not in compared.known]
    if new:
        await _store(tx, new, batch)
    failpoints.reach("postgres.import")
    await tx.rows("import_advance", _name(move), batch.last)
    tx.topics.add("ready")
    return len(new)


async def _store(tx: Transaction, jobs: Sequence[ExportedJob], batch: JobBatch) -> None:
    lanes = {job.row: tx.registry.lane_numbers[lane_of(_as_new(job))] for job in jobs}
    rows = [(job.id, lanes[job.row], _policy(tx, job), *_definition(job)) for job in jobs]
    stored = {job_id: seq for seq, job_id in await tx.rows("import_jobs", *_columns(rows))}
    seqs = {job.row: stored[job.id] for job in jobs}
    heads = [head for head in batch.heads if head.row in seqs]
    for head in heads:
        if head.holds:
            await tx.rows("import_slot", seqs[head.row])
    await _put(
        tx,
        "import_heads",
        [(seqs[head.row], lanes[head.row], *_columns_of_head(tx, head)) for head in heads],
    )
    await _put(tx, "import_workers", batch.workers)
    outcomes = [(row, *rest, _number(tx, policy)) for row, *rest, policy in batch.outcomes]
    batch = batch._replace(outcomes=outcomes)
    for name in _PLAIN:
        theirs: Iterable[Row] = getattr(batch, name.removeprefix("import_"))
        await _put(
            tx, name, [(seqs[row], *map(_clean, rest)) for row, *rest in theirs if row in seqs]
        )
    members = [(seqs[row], *rest) for row, *rest in batch.members if row in seqs]
    if members:
        await _put(tx, "import_members", members)
        await tx.rows("import_watch", [job for job, *_ in members])
    await _link(tx, [(seqs[row], *rest) for row, *rest in batch.links if row in seqs])


async def _link(tx: Transaction, links: Sequence[Row]) -> None:
    """Let jobs wait for those that they are to follow."""
    if not links:
        return
    # Those that were imported before may run here already: none ends before this commits.
    await tx.lock("dependency_lock", sorted({prerequisite for _, prerequisite, *_ in links}))
    stored = await tx.rows("import_links", *_columns(links))
    if stored:
        await tx.rows("import_waits", sorted({job for pair in stored for job in pair}))
        await tx.rows("import_backlog", sorted({prerequisite for _, prerequisite in stored}))


def _clean(value: object) -> object:
    """Replace U+0000, which a log line may contain and PostgreSQL cannot store."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _policy(tx: Transaction, job: ExportedJob) -> int:
    return tx.registry.policy_numbers[decode_policy(job.policy)]


def _number(tx: Transaction, policy: str | None) -> int | None:
    return None if policy is None else tx.registry.policy_numbers[decode_policy(policy)]


def _definition(job: ExportedJob) -> Row:
    """Return the columns after the policy."""
    return job[7:]


def _columns_of_head(tx: Transaction, head: ExportedHead) -> Row:
    """Return the columns after the lane, without `holds`."""
    return (*head[1:-2], _number(tx, head.policy))


async def _put(tx: Transaction, name: str, rows: Sequence[Row]) -> None:
    if rows:
        await tx.rows(name, *_columns(rows))


def _columns(rows: Sequence[Row], width: int = 0) -> list[list[Any]]:
    """Turn rows into columns, as statements take them."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]
