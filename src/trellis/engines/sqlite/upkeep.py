"""What the clock does on SQLite: due jobs become claimable, lingering slots end, old jobs go."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from trellis.engines.sqlite.keying import end_lingering, hand_over, slot_of
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.sqlkit.rows import SEEN_AT, record_from
from trellis.engines.values import Due, DueJob, DueKind, QueueSettings

#: Tables with rows of a job, in the order they are emptied; the job itself goes last.
_OF_A_JOB = ("outcome", "event", "note", "item", "log", "idempotency", "job")


def promote(tx: Transaction, limit: int) -> int:
    """Make due jobs claimable and end lingering slots."""
    tx.books.refresh_lanes(tx)
    moved = promote_due(tx, tx.books.lanes, limit, limit)
    moved += end_lingering(tx, "slot_overdue", tx.lease_now, tx.boot_id)
    if moved:
        tx.topics.add("ready")
    return moved


def promote_due(tx: Transaction, lanes: Iterable[int], each: int, limit: int | None = None) -> int:
    """Make due jobs claimable, or let them wait for their key: `each` per lane, `limit` in all."""
    found = chain.from_iterable(tx.rows("due_later", lane, tx.now, each) for lane in lanes)
    due = sorted(found, key=lambda row: (row[0], row[1]))[:limit]
    for _, job, key_hash in due:
        waits = key_hash is not None and slot_of(tx, job) is None
        tx.run("key_park", "slot" if waits else "ready", job)
        if key_hash is not None:
            hand_over(tx, key_hash)
    return len(due)


def due(tx: Transaction, kind: DueKind, limit: int) -> Due:
    """Return what maintenance must look at."""
    if kind == "sessions":
        rows = tx.rows("due_sessions", tx.boot_id, tx.lease_now, limit)
        return Due(tx.now, sessions=tuple(session for (session,) in rows))
    rows = tx.rows("due_lost", limit) if kind == "lost" else tx.rows("due_jobs", tx.now, limit)
    jobs = tuple(DueJob(record_from(row), row[SEEN_AT]) for row in rows)
    return Due(tx.now, jobs=jobs)


def prune(tx: Transaction, limit: int) -> int:
    """Remove jobs that retention no longer keeps, leaving a removal record each."""
    old = tx.rows("prune_pick", tx.now, limit)
    tx.run_many("prune_removal", [(job_id, state, tx.now) for _, job_id, state in old])
    jobs = [(job,) for job, _, _ in old]
    for table in _OF_A_JOB:
        tx.run_many(f"prune_{table}", jobs)
    return len(old)


def nothing_to_promote(tx: Transaction) -> int | None:
    """Answer a promotion that would move nothing, without writing."""
    tx.books.refresh_lanes(tx)
    if any(tx.one("due_later", lane, tx.now, 1) for lane in tx.books.lanes):
        return None
    return None if tx.one("slot_overdue", tx.lease_now, tx.boot_id) else 0


def nothing_to_prune(tx: Transaction) -> int | None:
    """Answer a pruning that would remove nothing, without writing."""
    return None if tx.one("prune_pick", tx.now, 1) else 0


def set_queue(tx: Transaction, settings: QueueSettings) -> None:
    """Pause, drain or reopen a queue."""
    tx.run("queue_set", *settings)
    tx.topics.add("ready")
