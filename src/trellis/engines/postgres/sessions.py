"""Sessions on PostgreSQL: one lease row per worker process, on the server's clock."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.job import Fence, SessionId
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import locks
from trellis.engines.sql.rows import Row, record_from
from trellis.engines.sql.slots import end_lingering
from trellis.engines.values import Renewed, SessionLost, SessionRecord, WorkerInfo


async def renew(
    tx: Transaction,
    session: SessionId,
    held: Sequence[Fence],
    stopped: Sequence[Fence],
    busy: int,
) -> Renewed | SessionLost:
    """Extend the lease; say what the worker should know about its claims."""
    answer = await tx.one("session_renew", session, busy)
    tx.now, draining = answer if answer is not None else (0, None)
    if draining is None:
        return SessionLost(tx.now)
    await tx.rows("lock_outlived", session)
    tokens = [fence.token for fence in stopped if fence.session == session]
    if tokens:
        await end_lingering(tx, "slot_stopped", session, tokens)
        await locks.end_stopped(tx, session, tokens)
    rows = await tx.rows("session_held", session)
    ours = {Fence(session, token): (job, asked) for job, token, asked in rows}
    named = set(held)
    strays = [job for fence, (job, _) in ours.items() if fence not in named]
    unknown = await tx.rows("record_by_seq", strays) if strays else ()
    records = sorted((record_from(row) for row in unknown), key=lambda each: each.definition.row)
    return Renewed(
        tx.now,
        tuple(fence for fence in held if fence in ours and ours[fence][1]),
        tuple(fence for fence in held if fence not in ours),
        tuple(records),
        bool(draining),
    )


async def close_session(tx: Transaction, session: SessionId) -> None:
    """End a session; what lingers for handlers that may still run lingers on."""
    await tx.read_clock()
    await tx.rows("session_end", tx.now, session)
    await tx.rows("lock_of_session", session)


async def reap(tx: Transaction, session: SessionId) -> bool:
    """End a session whose lease is over."""
    await tx.read_clock()
    ended = await tx.value("session_reap", session, tx.now)
    if ended is None and await tx.value("session_alive", session):
        return False
    await tx.rows("lock_of_session", session)
    await end_lingering(tx, "slot_of_session", session)
    await tx.rows("lock_reaped", session)
    return True


def session_record(row: Row) -> SessionRecord:
    """Build a session from a row of `session_list`."""
    (
        session, name, host, pid, version, details, opened_at, renewed_at, lease, lapsed, ended_at,
        held, busy, draining,
    ) = row  # fmt: skip
    info = WorkerInfo(name, host, pid, version, details)
    return SessionRecord(
        SessionId(session),
        info,
        opened_at,
        renewed_at,
        lease,
        lapsed,
        ended_at,
        held,
        busy,
        draining,
    )
