"""Importing the jobs of another store, one batch in one transaction with the progress of the move.

A move that was interrupted continues after the last job of the last batch, so no job is imported
twice, not even one that has ended here and was removed since. Jobs get new numbers that rise in the
order of the batches, which keeps the creation order. A job that held its key's slot while it waited
gets a slot again if one is free; all other slots are handed out at the end, when all waiting jobs
are imported. Batches are sealed then, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from trellis import failpoints
from trellis.core.audit import By, Change
from trellis.core.job import JobId
from trellis.core.policy import Policy, decode_policy
from trellis.engines.sql import audit
from trellis.engines.sql.rows import Lane, Row, decode_relations
from trellis.engines.sql.slots import hand_over, lock_keys
from trellis.engines.sql.transaction import Transaction
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


class Target(Protocol):
    """What an engine does in its own way, in a transaction under way."""

    def lane(self, lane: Lane) -> int:
        """Return the number of a lane."""

    def policy(self, policy: Policy) -> int:
        """Return the number of a policy."""

    async def add_jobs(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Store jobs in the order given; return the numbers of their ids."""

    def clean(self, value: object) -> object:
        """Return a value as the store can have it."""


def place_of(move: str) -> str:
    """Return the name of the progress of a move."""
    return f"received/{move}"


async def cursor(tx: Transaction, move: str) -> int:
    """Return the number of the last job that was imported; 0 before the first."""
    return int(await tx.value("import_cursor", place_of(move)) or 0)


async def begin(tx: Transaction, move: str) -> None:
    """Store that a move has begun, unless it has."""
    await tx.rows("import_begin", place_of(move))


# -- before anything is stored -----------------------------------------------------------------


async def known(tx: Transaction, ids: Sequence[JobId]) -> frozenset[JobId]:
    """Return which of these jobs are here, or were here and were removed."""
    return frozenset(JobId(row[0]) for row in await tx.rows("import_known", tx.array(ids)))


async def compare(tx: Transaction, batch: JobBatch) -> Compared:
    """Return which jobs are here already, and which cannot be imported."""
    ids = [job.id for job in batch.jobs]
    found = {job_id: rest for job_id, *rest in await tx.rows("import_known", tx.array(ids))}
    clashes = [
        Clash(job.id, "another job has its id")
        for job in batch.jobs
        # One that was here and was removed has no names any more.
        if job.id in found and found[job.id][0] is not None and _identity(job) != found[job.id]
    ]
    known = frozenset(JobId(job_id) for job_id in found)
    return Compared(known, (*clashes, *await _taken_marks(tx, batch, known)))


def _identity(job: ExportedJob) -> list[object]:
    return [job.service, job.queue, job.type, job.priority, job.created_at, job.payload]


async def _taken_marks(tx: Transaction, batch: JobBatch, known: frozenset[JobId]) -> list[Clash]:
    """Return the jobs that are not here, but whose marks belong to other jobs."""
    await tx.read_clock()
    ids = {job.row: job.id for job in batch.jobs if job.id not in known}
    once = {mark: ids[row] for row, mark in batch.marks if row in ids}
    dedupe = {
        job.dedupe: job.id
        for job in batch.jobs
        if job.dedupe is not None and (job.dedupe_until or 0) > tx.now and job.row in ids
    }
    for head in batch.heads:
        if head.dedupe is not None and head.row in ids:
            dedupe[head.dedupe] = ids[head.row]
    if not once and not dedupe:
        return []
    taken = await tx.rows("import_taken", tx.array(list(once)), tx.array(list(dedupe)), tx.now)
    return [
        Clash(
            (dedupe if is_dedupe else once)[mark],
            f"job {holder} has its {'dedupe' if is_dedupe else 'idempotency'} key",
        )
        for is_dedupe, mark, holder in taken
    ]


# -- the import --------------------------------------------------------------------------------


async def _check_turn(tx: Transaction, move: str, after: int) -> None:
    if await tx.value("import_turn", place_of(move)) != after:
        raise MoveRefused(
            "Another `trellis move` of the same database is running, or has just ended. Let it "
            "finish, then run this again to check that all jobs are there."
        )


async def import_rows(
    tx: Transaction, target: Target, move: str, after: int, *, kind: Kind, rows: Sequence[Row]
) -> None:
    """Store rows of a kind together with the progress of the move."""
    await _check_turn(tx, move, after)
    await tx.run_many(_ADD[kind], [tuple(map(target.clean, row[1:])) for row in rows])
    if kind == "batches":
        parents = [(row[1], row[6]) for row in rows if row[6] is not None]
        await tx.run_many("import_parents", parents)
    await tx.run("import_advance", rows[-1][0], place_of(move))


async def record(tx: Transaction, move: str, change: Change, by: By) -> None:
    """Store an entry of the audit about this move, once."""
    if await tx.value("import_turn", place_of(move)):
        return
    await tx.read_clock()
    await audit.record(tx, change, by)
    await tx.run("import_advance", 1, place_of(move))


async def import_batch(tx: Transaction, target: Target, move: str, batch: JobBatch) -> int:
    """Store a batch together with the progress of the move; return how many jobs were new."""
    await _check_turn(tx, move, batch.after)
    # Before any row of the jobs is locked: the lock of a key always comes first.
    await lock_keys(tx, (head.key_hash for head in batch.heads if head.holds))
    compared = await compare(tx, batch)
    if compared.clashes:
        raise MoveRefused(refusal(compared.clashes))
    new = [job for job in batch.jobs if job.id not in compared.known]
    if new:
        await _store(tx, target, new, batch)
    failpoints.reach("sql.import")
    await tx.run("import_advance", batch.last, place_of(move))
    tx.topics.add("ready")
    return len(new)


async def _store(
    tx: Transaction, target: Target, jobs: Sequence[ExportedJob], batch: JobBatch
) -> None:
    stored = await target.add_jobs([_job_row(target, job) for job in jobs])
    seqs = {job.row: stored[job.id] for job in jobs}
    by_row = {job.row: job for job in jobs}
    await tx.run_many("import_workers", [(*worker, tx.now) for worker in batch.workers])
    heads = [
        await _head_row(tx, target, by_row[head.row], head, seqs[head.row])
        for head in batch.heads
        if head.row in seqs
    ]
    await tx.run_many("import_heads", heads)
    outcomes = [(row, *rest, _number(target, policy)) for row, *rest, policy in batch.outcomes]
    batch = batch._replace(outcomes=outcomes)
    for name in _PLAIN:
        theirs: Iterable[Row] = getattr(batch, name.removeprefix("import_"))
        rows = [(seqs[row], *map(target.clean, rest)) for row, *rest in theirs if row in seqs]
        await tx.run_many(name, rows)
    members = [(seqs[row], *rest) for row, *rest in batch.members if row in seqs]
    if members:
        await tx.run_many("import_members", members)
        await tx.run("import_watch", tx.array([job for job, *_ in members]))
    await _link(tx, [(seqs[row], *rest) for row, *rest in batch.links if row in seqs])


def _job_row(target: Target, job: ExportedJob) -> Row:
    lane = target.lane(Lane(job.service, job.queue, job.type, job.priority))
    return (job.id, lane, target.policy(decode_policy(job.policy)), *job[7:])


async def _head_row(
    tx: Transaction, target: Target, job: ExportedJob, head: ExportedHead, seq: int
) -> Row:
    """Return the row of a waiting job; it takes a slot of its key if it held one."""
    relations = decode_relations(job.relations)
    tenant = None if relations is None else relations.tenant
    key = decode_policy(job.policy).key
    has_slot = head.key_hash is None
    if head.holds and key is not None and head.key_hash is not None:
        has_slot = await tx.value("key_held", head.key_hash) < key.active
        if has_slot:
            await tx.run("slot_take", head.key_hash, seq)
    availability = "ready" if has_slot else "waiting_for_slot"
    # Its promotion gives the job of a tenant a rank.
    if head.run_at > tx.now or tenant is not None:
        availability = "scheduled"
    return (
        seq,
        target.lane(Lane(job.service, job.queue, job.type, job.priority)),
        availability,
        *head[1:-2],
        _number(target, head.policy),
        tenant,
        None if relations is None else relations.weight,
    )


async def _link(tx: Transaction, links: Sequence[Row]) -> None:
    """Let jobs wait for those that they are to follow.

    Only for jobs that are here: an ended one that stayed behind has decided its links already.
    """
    if not links:
        return
    # Those that were imported before may run here already: none ends before this commits.
    ids = sorted({other for _, other, *_ in links})
    await tx.lock("dependency_lock", ids)
    numbers = {job_id: seq for seq, job_id in await tx.rows("import_numbers", tx.array(ids))}
    stored = [
        (job, numbers[other], on, ended, generation or 0)
        for job, other, on, ended, generation in links
        if other in numbers
    ]
    if stored:
        await tx.run_many("dependency_put", stored)
        both = sorted({job for job, other, *_ in stored} | {other for _, other, *_ in stored})
        await tx.run("import_waits", tx.array(both))
        await tx.run("import_backlog", tx.array(sorted({other for _, other, *_ in stored})))


def _number(target: Target, policy: str | None) -> int | None:
    return None if policy is None else target.policy(decode_policy(policy))


async def assign_slots(tx: Transaction, keys: Sequence[str]) -> None:
    """Give the free slots of these keys to their waiting jobs."""
    await lock_keys(tx, keys)
    await hand_over(tx, keys)
