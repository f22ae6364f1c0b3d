"""What the clock does on PostgreSQL: jobs become due, lingering ends, what is old goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.core.job import JobId
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import locks
from trellis.engines.sql.rows import SEEN_AT, Row, record_from
from trellis.engines.sql.slots import (
    admit_callers_jobs,
    end_lingering,
    hand_over,
    lock_keys,
)
from trellis.engines.values import KEEP_SESSIONS, Due, DueJob, DueKind, Removal

#: Tables with rows of a job, in the order they are emptied; the job itself goes last.
_OF_A_JOB: Final = ("outcome", "event", "note", "item", "log", "idempotency", "job")


async def promote_all(tx: Transaction, limit: int) -> int:
    """Make due jobs of all lanes claimable."""
    await tx.read_clock()
    return _told(tx, await promote_due(tx, list(tx.registry.lanes), limit, limit))


async def admit_all_callers_jobs(tx: Transaction, limit: int) -> int:
    """Let keyed jobs of callers' transactions wait for their slots."""
    await admit_callers_jobs(tx, limit)
    return 0


async def end_all_lingering(tx: Transaction, limit: int) -> int:
    """End slots and locks that have lingered long enough."""
    await tx.read_clock()
    ended = await end_lingering(tx, "slot_overdue", tx.now, limit)
    return _told(tx, ended + await locks.end_overdue(tx))


#: Each is a transaction of its own: keys are locked once in each, in one order for everybody.
PROMOTIONS: Final = (promote_all, admit_all_callers_jobs, end_all_lingering)


def _told(tx: Transaction, moved: int) -> int:
    if moved:
        tx.topics.add("ready")
    return moved


async def promote_due(
    tx: Transaction, lanes: Sequence[int], each: int, limit: int | None = None
) -> int:
    """Make due jobs claimable, or let them wait for their key: `each` per lane, `limit` in all.

    Without a limit it is for a claim, which has no business with paused queues.
    """
    due = await tx.rows("due_later", lanes, each, limit, limit is not None)
    if not due:
        return 0
    keys = [key_hash for _, key_hash in due]
    await lock_keys(tx, keys)
    moved = await tx.rows("promote", sorted(job for job, _ in due))
    await hand_over(tx, keys)
    return len(moved)


async def due(tx: Transaction, kind: DueKind, limit: int) -> Due:
    """Return what maintenance must look at."""
    await tx.read_clock()
    if kind == "sessions":
        rows = await tx.rows("due_sessions", tx.now, limit)
        return Due(tx.now, sessions=tuple(session for (session,) in rows))
    if kind == "lost":
        rows = await tx.rows("due_lost", limit)
    else:
        rows = await tx.rows("due_jobs", tx.now, limit)
    return Due(tx.now, jobs=tuple(DueJob(record_from(row), row[SEEN_AT]) for row in rows))


async def prune(tx: Transaction, limit: int) -> int:
    """Remove jobs that retention no longer keeps, then sessions that are long over."""
    await tx.read_clock()
    old = await tx.rows("prune_pick", tx.now, limit)
    await _erase(tx, old)
    over = await tx.rows("prune_sessions", tx.now - KEEP_SESSIONS, limit - len(old))
    return len(old) + len(over)


async def remove(tx: Transaction, ids: Sequence[JobId]) -> list[Removal]:
    """Remove ended jobs at once, as pruning does."""
    await tx.read_clock()
    wanted = list(dict.fromkeys(ids))
    seen = await tx.rows("remove_look", wanted)
    await tx.rows("outcome_lock", sorted(row[1] for row in seen))
    # Looked at again: somebody for whom we waited may have brought one back.
    found = {row[0]: row for row in await tx.rows("remove_look", wanted)}
    ended = [(job, job_id, state) for job_id, job, is_live, state in found.values() if not is_live]
    await _erase(tx, ended)
    results: list[Removal] = []
    for job_id in ids:
        row = found.pop(job_id, None)
        if row is not None and row[2]:
            found[job_id] = row  # a live one is refused as often as it is named
            results.append("live")
        else:
            results.append("missing" if row is None else "removed")
    return results


async def _erase(tx: Transaction, jobs: Sequence[Row]) -> None:
    """Remove all that belongs to these jobs (number, id, state); record that they were here."""
    if not jobs:
        return
    ids, states = [row[1] for row in jobs], [row[2] for row in jobs]
    await tx.rows("prune_removal", ids, states, tx.now)
    numbers = sorted(row[0] for row in jobs)
    for table in _OF_A_JOB:
        await tx.rows(f"prune_{table}", numbers)
