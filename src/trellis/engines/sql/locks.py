"""Locks: leased rows, judged by the session and the attempt they belong to.

A lock of an attempt that was ended from outside stays held while its handler may still run: it
lingers, as the attempt's key slot does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trellis.core.job import SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.sql.transaction import Transaction
from trellis.engines.values import LockHolder


class Held(NamedTuple):
    """The holder of a lock, and whether it is held only because a handler may still run."""

    holder: LockHolder
    lingers: bool

    def is_of(self, session: SessionId, token: int) -> bool:
        """Return whether this session and attempt may use the lock."""
        return (self.holder.session, self.holder.token) == (session, token) and not self.lingers


async def take_lock(
    tx: Transaction, name: str, session: SessionId, token: int
) -> LockHolder | None:
    """Take a lock that is free or held by this attempt; otherwise return its holder."""
    await tx.lock("lock_gate", name)
    await tx.read_clock()
    held = await find_lock(tx, name)
    if held is None:
        await tx.run("lock_put", name, session, token, tx.now)
        held = await find_lock(tx, name)
    if held is None:
        # This session or attempt is itself over.
        await tx.changed("lock_free", name, session, token)
        return LockHolder(name, session, token, "", None, tx.now)
    return None if held.is_of(session, token) else held.holder


async def find_lock(tx: Transaction, name: str) -> Held | None:
    """Return the holder of a lock; None if it is free."""
    row = await tx.one("lock_holder", name, *tx.lease_clock)
    return None if row is None else Held(LockHolder(*row[:-1]), bool(row[-1]))


async def other_holder(
    tx: Transaction, name: str, session: SessionId, token: int
) -> LockHolder | None:
    """Return the holder that keeps this attempt from taking a lock, without writing."""
    held = await find_lock(tx, name)
    return None if held is None or held.is_of(session, token) else held.holder


async def free_lock(tx: Transaction, name: str, session: SessionId, token: int) -> bool:
    """Release a lock."""
    return await tx.changed("lock_free", name, session, token) > 0


async def list_locks(tx: Transaction) -> list[LockHolder]:
    """List the locks that are held now."""
    return [LockHolder(*row) for row in await tx.rows("lock_list", *tx.lease_clock)]


async def linger(tx: Transaction, transition: Transition) -> None:
    """Keep the locks of an attempt whose handler may still run, unless its session is over."""
    fence = transition.before.fence
    lease = None if fence is None else await tx.one("session_lease", fence.session)
    if fence is not None and lease is not None:
        until = tx.lease_until(lease[0])
        await tx.run("lock_linger", *until, transition.definition.row, *fence)


async def end_stopped(tx: Transaction, session: SessionId, tokens: Sequence[int]) -> None:
    """Free the locks that linger for handlers that have stopped."""
    await tx.run("lock_stopped", session, tx.array(tokens))


async def end_overdue(tx: Transaction) -> int:
    """Free the locks that have lingered long enough; return how many."""
    return await tx.changed("lock_overdue", *tx.lease_clock)
