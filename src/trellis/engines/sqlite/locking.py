"""Locks on SQLite: leased rows, judged by the session and the attempt they belong to.

A lock of an attempt that was ended from outside stays held while its handler may still run: it
lingers, as the attempt's key slot does.
"""

from __future__ import annotations

from typing import NamedTuple

from trellis.core.job import Fence, SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import LockHolder, LockRecord


class _Held(NamedTuple):
    """Who has a lock, and whether only because its handler may still run."""

    holder: LockHolder
    lingers: bool

    def is_of(self, session: SessionId, token: int) -> bool:
        """Tell whether the lock may be used in this name."""
        return (self.holder.session, self.holder.token) == (session, token) and not self.lingers


def take_lock(tx: Transaction, name: str, session: SessionId, token: int) -> LockHolder | None:
    """Take a lock that is free or ours; else say who has it."""
    held = _held(tx, name)
    if held is None:
        tx.run("lock_put", name, session, token, tx.now)
        held = _held(tx, name)
    if held is None:
        # We are over ourselves.
        tx.run("lock_free", name, session, token)
        return LockHolder(name, session, token, "", None, tx.now)
    return None if held.is_of(session, token) else held.holder


def held_by_another(
    tx: Transaction, name: str, session: SessionId, token: int
) -> LockHolder | None:
    """Answer whoever cannot have the lock without writing; None if the lock may be had."""
    held = _held(tx, name)
    return None if held is None or held.is_of(session, token) else held.holder


def free_lock(tx: Transaction, name: str, session: SessionId, token: int) -> bool:
    """Give a lock back."""
    return tx.run("lock_free", name, session, token) > 0


def list_locks(tx: Transaction) -> list[LockRecord]:
    """List the locks that count now."""
    return [LockHolder(*row) for row in tx.rows("lock_list", *_clock(tx), *_clock(tx))]


def linger(tx: Transaction, transition: Transition) -> None:
    """Keep the locks of an attempt whose handler may run on, unless its session is over."""
    fence = transition.before.fence
    lease = tx.one("session_lease", fence.session) if fence else None
    if fence is not None and lease is not None:
        until = tx.lease_now + lease[0]
        tx.run("lock_linger", until, tx.boot_id, transition.definition.row, *fence)


def end_stopped(tx: Transaction, fence: Fence) -> None:
    """Free what lingers for a handler that has stopped."""
    tx.run("lock_stopped", *fence)


def end_overdue(tx: Transaction) -> int:
    """Forget locks that have lingered long enough."""
    overdue = tx.rows("lock_overdue", tx.lease_now, tx.boot_id)
    for row in overdue:
        tx.run("lock_free", *row)
    return len(overdue)


def is_any_overdue(tx: Transaction) -> bool:
    """Tell whether `end_overdue` would find something."""
    return tx.one("lock_overdue", tx.lease_now, tx.boot_id) is not None


def _held(tx: Transaction, name: str) -> _Held | None:
    row = tx.one("lock_holder", name, *_clock(tx), *_clock(tx))
    return None if row is None else _Held(LockHolder(*row[:-1]), bool(row[-1]))


def _clock(tx: Transaction) -> tuple[str, int]:
    return tx.boot_id, tx.lease_now
