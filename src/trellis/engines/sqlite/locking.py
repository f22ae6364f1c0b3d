"""Locks on SQLite: leased rows, judged by the session and the attempt they belong to."""

from __future__ import annotations

from trellis.core.job import SessionId
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import LockHolder, LockRecord


def take_lock(tx: Transaction, name: str, session: SessionId, token: int) -> LockHolder | None:
    """Take a lock that is free or ours; else say who has it."""
    holder = _holder(tx, name)
    if holder is None:
        tx.run("lock_put", name, session, token, tx.now)
        holder = _holder(tx, name)
    if holder is None:
        # We are over ourselves.
        tx.run("lock_free", name, session, token)
        return LockHolder(name, session, token, "", None, tx.now)
    return None if _is_of(holder, session, token) else holder


def held_by_another(
    tx: Transaction, name: str, session: SessionId, token: int
) -> LockHolder | None:
    """Answer whoever cannot have the lock without writing; None if the lock may be had."""
    holder = _holder(tx, name)
    return None if holder is None or _is_of(holder, session, token) else holder


def free_lock(tx: Transaction, name: str, session: SessionId, token: int) -> bool:
    """Give a lock back."""
    return tx.run("lock_free", name, session, token) > 0


def list_locks(tx: Transaction) -> list[LockRecord]:
    """List the locks that count now."""
    return [LockHolder(*row) for row in tx.rows("lock_list", tx.boot_id, tx.lease_now)]


def _holder(tx: Transaction, name: str) -> LockHolder | None:
    row = tx.one("lock_holder", name, tx.boot_id, tx.lease_now)
    return None if row is None else LockHolder(*row)


def _is_of(holder: LockHolder, session: SessionId, token: int) -> bool:
    return (holder.session, holder.token) == (session, token)
