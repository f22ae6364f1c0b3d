"""Promotion on SQLite, and what spares an idle worker the write lock.

Each `peek` answers for a verb that would change nothing, without writing; None means that the verb
must run.
"""

from __future__ import annotations

from trellis.core.batches import KEEP_BATCHES
from trellis.engines.archive import KEEP_REMOVALS
from trellis.engines.sql import followups, maintenance, slots
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.storage import SqliteStorage
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.tokens import KEEP_LOGINS
from trellis.engines.values import KEEP_SESSIONS


def promote(tx: Transaction, limit: int) -> int:
    """Make due jobs claimable; end slots and locks that have lingered long enough."""
    tx.registry.refresh_lanes(tx)
    moved = run_through(maintenance.promote(tx.shared, tx.registry.lanes, limit))
    moved += run_through(followups.work_off(tx.shared, SqliteStorage(tx)))
    moved += run_through(slots.wake_rated(tx.shared, limit))
    return moved + run_through(maintenance.end_lingering(tx.shared))


def peek_promotion(tx: Transaction) -> int | None:
    """Answer a promotion that would move nothing."""
    tx.registry.refresh_lanes(tx)
    if any(tx.one("due_peek", lane, tx.now) for lane in tx.registry.lanes):
        return None
    if tx.one("backlog_pick", 1):
        return None
    if tx.one("slot_overdue", tx.boot_id, tx.lease_now):
        return None
    if tx.one("key_wake_due", tx.now, 1):
        return None
    if tx.one("lingering_is_overdue", tx.boot_id, tx.lease_now):
        return None
    return None if tx.one("lock_is_overdue", tx.boot_id, tx.lease_now) else 0


def peek_pruning(tx: Transaction) -> int | None:
    """Answer a pruning that would remove nothing."""
    if tx.one("prune_peek", tx.now) or tx.one("key_bucket_is_full", tx.now):
        return None
    if tx.one("prune_batches_peek", tx.now - KEEP_BATCHES) or tx.one("fair_prune_peek", tx.now):
        return None
    if tx.one("archive_off") or tx.one("prune_removals_peek", tx.now - KEEP_REMOVALS):
        return None
    if tx.one("token_prune_logins_peek", tx.now - KEEP_LOGINS):
        return None
    return None if tx.one("prune_sessions_peek", tx.now - KEEP_SESSIONS) else 0
