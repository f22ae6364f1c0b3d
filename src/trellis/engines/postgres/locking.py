"""Locks on PostgreSQL: leased rows, judged by the session and the attempt they belong to.

A lock of an attempt that was ended from outside stays held while its handler may still run: it
lingers, as the attempt's key slot does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trellis.core.job import SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.rows import Row
from trellis.engines.values import LockHolder


class Held(NamedTuple):
    """Who has a lock, and whether only because its handler may still run."""

    holder: LockHolder
    lingers: bool

    def is_of(self, session: SessionId, token: int) -> bool:
        """Tell whether the lock may be used in this name."""
        return (self.holder.session, self.holder.token) == (session, token) and not self.lingers


async def take_lock(
    tx: Transaction, name: str, session: SessionId, token: int
) -> LockHolder | None:
    """Take a lock that is free or ours; else say who has it."""
    await tx.rows("lock_gate", name)
    await tx.read_clock()
    held = await _held(tx, name)
    if held is None:
        await tx.rows("lock_put", name, session, token, tx.now)
        held = await _held(tx, name)
    if held is None:
        # We are over ourselves.
        await tx.rows("lock_free", name, session, token)
        return LockHolder(name, session, token, "", None, tx.now)
    return None if held.is_of(session, token) else held.holder


async def linger(tx: Transaction, transition: Transition) -> None:
    """Keep the locks of an attempt whose handler may run on, unless its session is over."""
    fence = transition.before.fence
    lease = None if fence is None else await tx.one("session_lease", fence.session)
    if fence is not None and lease is not None:
        await tx.rows("lock_linger", tx.now + lease[0], transition.definition.row, *fence)


def held_by(rows: Sequence[Row]) -> Held | None:
    """Read what `lock_holder` found."""
    return Held(LockHolder(*rows[0][:-1]), bool(rows[0][-1])) if rows else None


async def _held(tx: Transaction, name: str) -> Held | None:
    return held_by(await tx.rows("lock_holder", name, tx.now))
