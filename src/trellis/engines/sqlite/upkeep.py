"""What the clock does on SQLite: due jobs become claimable, lingering ends, what is old goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from trellis.core.job import JobId
from trellis.engines.sql import locks, slots
from trellis.engines.sql.rows import SEEN_AT, Row, record_from
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import KEEP_SESSIONS, Due, DueJob, DueKind, QueueSettings, Removal

#: Tables with rows of a job, in the order they are emptied; the job itself goes last.
_OF_A_JOB = ("outcome", "event", "note", "item", "log", "idempotency", "job")


def promote(tx: Transaction, limit: int) -> int:
    """Make due jobs claimable; end slots and locks that have lingered long enough."""
    tx.registry.refresh_lanes(tx)
    moved = promote_due(tx, tx.registry.lanes, limit, limit)
    shared = tx.shared
    moved += run_through(slots.end_lingering(shared, "slot_overdue", *shared.lease_clock, limit))
    moved += run_through(locks.end_overdue(shared))
    if moved:
        tx.topics.add("ready")
    return moved


def promote_due(tx: Transaction, lanes: Iterable[int], each: int, limit: int | None = None) -> int:
    """Make due jobs claimable, or let them wait for their key: `each` per lane, `limit` in all."""
    found = chain.from_iterable(tx.rows("due_later", lane, tx.now, each) for lane in lanes)
    due = sorted(found, key=lambda row: (row[0], row[1]))[:limit]
    for _, job, key_hash in due:
        waits = key_hash is not None and tx.one("slot_of_job", job) is None
        tx.run("key_availability", "slot" if waits else "ready", job)
        if key_hash is not None:
            run_through(slots.hand_over(tx.shared, [key_hash]))
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
    """Remove jobs that retention no longer keeps, then sessions that are long over."""
    old = tx.rows("prune_pick", tx.now, limit)
    _erase(tx, old)
    over = tx.rows("prune_sessions_pick", tx.now - KEEP_SESSIONS, limit - len(old))
    tx.run_many("prune_session", over)
    return len(old) + len(over)


def remove(tx: Transaction, ids: Sequence[JobId]) -> list[Removal]:
    """Remove ended jobs at once, as pruning does."""
    return [_remove(tx, job_id) for job_id in ids]


def _remove(tx: Transaction, job_id: JobId) -> Removal:
    row = tx.one("remove_look", job_id)
    if row is None:
        return "missing"
    job, state, is_live = row
    if is_live:
        return "live"
    _erase(tx, [(job, job_id, state)])
    return "removed"


def _erase(tx: Transaction, jobs: Sequence[Row]) -> None:
    """Remove all that belongs to these jobs (number, id, state); record that they were here."""
    tx.run_many("prune_removal", [(job_id, state, tx.now) for _, job_id, state in jobs])
    numbers = [(job,) for job, _, _ in jobs]
    for table in _OF_A_JOB:
        tx.run_many(f"prune_{table}", numbers)


def nothing_to_promote(tx: Transaction) -> int | None:
    """Answer a promotion that would move nothing, without writing."""
    tx.registry.refresh_lanes(tx)
    if any(tx.one("due_later", lane, tx.now, 1) for lane in tx.registry.lanes):
        return None
    if tx.one("slot_overdue", tx.boot_id, tx.lease_now, 1):
        return None
    return None if tx.one("lock_is_overdue", tx.boot_id, tx.lease_now) else 0


def nothing_to_prune(tx: Transaction) -> int | None:
    """Answer a pruning that would remove nothing, without writing."""
    if tx.one("prune_pick", tx.now, 1):
        return None
    return None if tx.one("prune_sessions_pick", tx.now - KEEP_SESSIONS, 1) else 0


def set_queue(tx: Transaction, settings: QueueSettings) -> None:
    """Pause, drain or reopen a queue."""
    tx.run("queue_set", *settings)
    tx.topics.add("ready")
