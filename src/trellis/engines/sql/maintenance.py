"""Maintenance: due jobs become claimable, lingering ends, retention removes what is old."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from trellis.core.job import JobId
from trellis.engines.sql import locks, slots
from trellis.engines.sql.rows import SEEN_AT, Row, record_from
from trellis.engines.sql.transaction import Transaction
from trellis.engines.values import KEEP_SESSIONS, Due, DueJob, DueKind, QueueSettings, Removal

#: Tables with rows of a job, in the order in which they are emptied; the job itself is last.
TABLES_OF_A_JOB: Final = ("outcome", "event", "note", "item", "log", "idempotency", "job")


async def due(tx: Transaction, kind: DueKind, limit: int) -> Due:
    """Return the sessions or jobs that maintenance must look at."""
    await tx.read_clock()
    if kind == "sessions":
        rows = await tx.rows("due_sessions", *tx.lease_clock, limit)
        return Due(tx.now, sessions=tuple(session for (session,) in rows))
    if kind == "lost":
        rows = await tx.rows("due_lost", limit)
    else:
        rows = await tx.rows("due_jobs", tx.now, limit)
    return Due(tx.now, jobs=tuple(DueJob(record_from(row), row[SEEN_AT]) for row in rows))


async def promote(tx: Transaction, lanes: Collection[int], limit: int) -> int:
    """Make due jobs of all lanes claimable; return how many."""
    await tx.read_clock()
    return _announced(tx, await promote_due(tx, lanes, limit, limit))


async def end_lingering(tx: Transaction) -> int:
    """End the lingering of slots and locks whose time is over; return how many.

    There are never more of them than handlers that run, so all of them end at once.
    """
    await tx.read_clock()
    ended = await slots.end_lingering(tx, "slot_overdue", *tx.lease_clock)
    return _announced(tx, ended + await locks.end_overdue(tx))


def _announced(tx: Transaction, moved: int) -> int:
    if moved:
        tx.topics.add("ready")
    return moved


async def promote_due(
    tx: Transaction, lanes: Collection[int], each: int, limit: int | None = None
) -> int:
    """Make due jobs claimable, or let them wait for their key: `each` per lane, `limit` in all.

    Without a limit it serves a claim, which leaves paused queues alone.
    """
    jobs = await tx.rows("due_scheduled", tx.array(list(lanes)), tx.now, each, limit)
    if not jobs:
        return 0
    keys = [key_hash for _, key_hash in jobs]
    await slots.lock_keys(tx, keys)
    moved = await tx.changed("promote", tx.array(sorted(job for job, _ in jobs)), tx.now)
    await slots.hand_over(tx, keys)
    return moved


async def prune(tx: Transaction, limit: int) -> int:
    """Remove jobs that retention no longer keeps, then sessions that ended long ago."""
    await tx.read_clock()
    old = await tx.rows("prune_pick", tx.now, limit)
    await _erase(tx, old)
    return len(old) + await tx.changed("prune_sessions", tx.now - KEEP_SESSIONS, limit - len(old))


async def remove(tx: Transaction, ids: Sequence[JobId]) -> list[Removal]:
    """Remove ended jobs at once, as pruning does."""
    await tx.read_clock()
    wanted = tx.array(list(dict.fromkeys(ids)))
    await tx.lock("remove_lock", wanted)  # so that none is revived before it is removed
    found = {row[1]: row for row in await tx.rows("remove_look", wanted)}
    await _erase(tx, [row[:3] for row in found.values() if not row[3]])
    results: list[Removal] = []
    for job_id in ids:
        row = found.get(job_id)
        if row is None:
            results.append("missing")
        elif row[3]:
            results.append("live")
        else:
            del found[job_id]  # named again, it is missing
            results.append("removed")
    return results


async def _erase(tx: Transaction, jobs: Sequence[Row]) -> None:
    """Remove all rows of these jobs (number, id, state); record that they existed."""
    await tx.run_many("prune_removal", [(job_id, state, tx.now) for _, job_id, state in jobs])
    numbers = sorted((job,) for job, _, _ in jobs)
    for table in TABLES_OF_A_JOB:
        await tx.run_many(f"prune_{table}", numbers)


async def set_queue(tx: Transaction, settings: QueueSettings) -> None:
    """Pause, drain or reopen a queue."""
    await tx.run("queue_set", *settings)
    tx.topics.add("ready")
