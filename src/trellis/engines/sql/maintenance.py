"""Maintenance: due jobs become claimable, lingering ends, retention removes what is old."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from trellis.core.batches import ENDED_READERS
from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.engines.archive import KEEP_REMOVALS, Archived
from trellis.engines.audit import By, Change, removal_of, settings_of
from trellis.engines.sql import archive, audit, batches, fairness, feed, limits, locks, slots
from trellis.engines.sql.rows import SEEN_AT, Row, record_from
from trellis.engines.sql.transaction import Transaction
from trellis.engines.tokens import KEEP_LOGINS
from trellis.engines.values import (
    KEEP_SESSIONS,
    Due,
    DueJob,
    DueKind,
    QueueSettings,
    Removal,
)

#: Tables with rows of a job, in the order in which they are emptied; the job itself is last.
TABLES_OF_A_JOB: Final = (
    "outcome", "event", "note", "item", "log", "idempotency", "dependency", "dependent",
    "batch_member", "archive_queue", "job",
)  # fmt: skip


async def due(tx: Transaction, kind: DueKind, limit: int) -> Due:
    """Return the sessions or jobs that maintenance must look at."""
    await tx.read_clock()
    if kind == "sessions":
        rows = await tx.rows("due_sessions", *tx.lease_clock, limit)
        return Due(tx.now, sessions=tuple(session for (session,) in rows))
    if kind == "lost":
        rows = await tx.rows("due_lost", limit)
    elif kind == "batches":
        rows = await tx.rows("due_batches", limit)
    else:
        rows = await tx.rows("due_jobs", tx.now, limit)
    if rows:
        await tx.read_clock()  # after the rows: not before any event of these jobs
    return Due(tx.now, jobs=tuple(map(_due_job, rows)))


async def due_jobs(tx: Transaction, now: Instant, limit: int) -> list[DueJob]:
    """Return the jobs that maintenance must look at by the clock of another store."""
    return [_due_job(row) for row in await tx.rows("due_jobs", now, limit)]


def _due_job(row: Row) -> DueJob:
    return DueJob(record_from(row), row[SEEN_AT])


async def promote(tx: Transaction, lanes: Collection[int], limit: int) -> int:
    """Make due jobs of all lanes claimable; return how many."""
    await tx.read_clock()
    return _announced(tx, await promote_due(tx, lanes, limit, limit))


async def end_lingering(tx: Transaction) -> int:
    """End the lingering of slots, locks and attempts whose time is over; return how many.

    There are never more of them than handlers that run, so all of them end at once.
    """
    await tx.read_clock()
    ended = await slots.end_lingering(tx, "slot_overdue", *tx.lease_clock)
    await limits.end_overdue(tx)
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
    keys = [key_hash for _, key_hash, *_ in jobs]
    await slots.lock_keys(tx, keys)
    await fairness.rank_due(tx, jobs)
    moved = await tx.changed("promote", tx.array(sorted(job for job, *_ in jobs)), tx.now)
    await slots.hand_over(tx, keys)
    return moved


async def prune(tx: Transaction, limit: int) -> int:
    """Remove jobs that retention no longer keeps, then sessions that ended long ago."""
    await tx.read_clock()
    await batches.prune(tx, limit)
    await tx.run("key_bucket_prune", tx.now)
    old = await tx.rows("prune_pick", tx.array(ENDED_READERS), tx.now, limit)
    await erase(tx, await archive.set_apart(tx, old))
    left_behind = await archive.left_behind(tx, limit - len(old))
    await erase(tx, left_behind)
    await tx.run("prune_removals", tx.now - KEEP_REMOVALS, limit)
    await tx.run("token_prune_logins", tx.now - KEEP_LOGINS, limit)
    moved = len(old) + len(left_behind)
    ended = (tx.now - KEEP_SESSIONS, limit - moved)
    await tx.run("past_session_keep", *ended)
    sessions = await tx.changed("prune_sessions", *ended)
    await tx.run("past_session_prune")
    await fairness.prune(tx, limit)
    return moved + sessions


async def remove_archived(tx: Transaction, archived: Sequence[Archived]) -> int:
    """Remove the jobs that are still as they were archived; return how many."""
    await tx.read_clock()
    jobs = await archive.chosen(tx, archived)
    await erase(tx, jobs)
    return len(jobs)


async def remove(tx: Transaction, ids: Sequence[JobId], by: By) -> list[Removal]:
    """Remove ended jobs at once, as pruning does."""
    await tx.read_clock()
    wanted = tx.array(list(dict.fromkeys(ids)))
    await tx.lock("remove_lock", wanted)  # so that none is revived before it is removed
    found = {row[1]: row for row in await tx.rows("remove_look", tx.array(ENDED_READERS), wanted)}
    await erase(tx, [row[:3] for row in found.values() if not any(row[3:6])])
    results: list[Removal] = []
    changes: list[Change] = []
    for job_id in ids:
        row = found.get(job_id)
        if row is None:
            results.append("missing")
        elif row[3] or row[4]:
            results.append("live" if row[3] else "needed")
        elif row[5]:
            results.append("in_batch")
        else:
            del found[job_id]  # named again, it is missing
            results.append("removed")
            changes.append(removal_of(job_id, row[2]))
    await audit.record_all(tx, changes, by)
    return results


async def erase(tx: Transaction, jobs: Sequence[Row], at: Instant | None = None) -> None:
    """Remove all rows of these jobs (number, id, state); record that they existed until now."""
    when = tx.now if at is None else at
    await tx.run_many("prune_removal", [(job_id, state, when) for _, job_id, state in jobs])
    numbers = sorted((job,) for job, _, _ in jobs)
    await feed.raise_horizon(tx, numbers)
    for table in TABLES_OF_A_JOB:
        await tx.run_many(f"prune_{table}", numbers)


async def set_queue(tx: Transaction, settings: QueueSettings, by: By) -> None:
    """Pause, drain or reopen a queue."""
    name = settings.service, settings.queue
    found = await tx.one("queue_setting", *name)
    await tx.read_clock()
    await tx.run("queue_set", *settings)
    change = settings_of(QueueSettings(*name, *map(bool, found or ())), settings)
    if change is not None:
        await audit.record(tx, change, by)
    tx.topics.add("ready")
