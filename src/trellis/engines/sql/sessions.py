"""Sessions: one lease row per worker process.

PostgreSQL measures leases on the server's clock, SQLite on the clock of this boot; the transaction
hides the difference (`lease_clock`, `lease_until`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from trellis.core.durations import Micros
from trellis.core.job import Fence, SessionId
from trellis.engines.audit import By, drain_of
from trellis.engines.sql import audit, limits, locks, slots
from trellis.engines.sql.rows import record_from
from trellis.engines.sql.transaction import Transaction
from trellis.engines.values import Renewed, Session, SessionLost, SessionRecord, WorkerInfo
from trellis.engines.worker_report import WorkerReport, report_from


async def open_session(tx: Transaction, info: WorkerInfo, lease: Micros) -> Session:
    """Start a session."""
    await tx.read_clock()
    session = SessionId(secrets.randbits(62) + 1)
    await tx.run("session_open", session, *info, lease, tx.now, *tx.lease_until(lease))
    return Session(session, lease, tx.now)


async def renew(
    tx: Transaction,
    session: SessionId,
    held: Sequence[Fence],
    stopped: Sequence[Fence],
    report: WorkerReport,
) -> Renewed | SessionLost:
    """Extend the lease; report which claims are gone, cancelled or unknown to the worker."""
    await tx.read_clock()
    if not await tx.changed("session_renew", session, report.to_json(), tx.now, *tx.lease_clock):
        return SessionLost(tx.now)
    await tx.run("lock_outlived", session)
    tokens = [fence.token for fence in stopped if fence.session == session]
    if tokens:
        await slots.end_lingering(tx, "slot_stopped", session, tx.array(tokens))
        await locks.end_stopped(tx, session, tokens)
        await limits.end_stopped(tx, session, tokens)
    rows = await tx.rows("session_held", session)
    claims = {Fence(session, row[2]): row for row in rows if row[1] is not None}
    named = set(held)
    unknown = sorted(row[1] for fence, row in claims.items() if fence not in named)
    records = await tx.rows("record_by_seq", tx.array(unknown)) if unknown else ()
    if unknown:
        await tx.read_clock()  # after the rows: not before any event of these jobs
    return Renewed(
        tx.now,
        tuple(fence for fence in held if fence in claims and claims[fence][3]),
        tuple(fence for fence in held if fence not in claims),
        tuple(sorted(map(record_from, records), key=lambda each: each.definition.row)),
        any(row[0] for row in rows),
    )


async def close_session(tx: Transaction, session: SessionId) -> None:
    """End a session; slots and locks that linger for running handlers stay."""
    await tx.read_clock()
    await tx.run("session_end", tx.now, session)
    await tx.run("lock_of_session", session)


async def reap(tx: Transaction, session: SessionId) -> bool:
    """End a session whose lease is over, with all that lingers for it."""
    await tx.read_clock()
    is_reaped = await tx.changed("session_reap", session, tx.now, *tx.lease_clock)
    if not is_reaped and await tx.one("session_lease", session) is not None:
        return False  # renewed in the meantime
    await slots.end_lingering(tx, "slot_of_session", session)
    await tx.run("lock_reaped", session)
    await limits.end_reaped(tx, session)
    return True


async def ask_drain(tx: Transaction, session: SessionId, by: By) -> bool:
    """Ask a worker process to finish its jobs and stop; False if its session is over."""
    found = await tx.one("session_draining", session)
    if found is None:
        return False
    is_draining, name = found
    if not is_draining:
        await tx.read_clock()
        await tx.run("session_drain", session)
        await audit.record(tx, drain_of(session, name), by)
    return True


async def list_sessions(tx: Transaction) -> list[SessionRecord]:
    """List sessions, the newest first."""
    return [
        SessionRecord(
            SessionId(session),
            WorkerInfo(name, host, pid, version, details),
            opened_at,
            renewed_at,
            lease,
            bool(lapsed),
            ended_at,
            held,
            report_from(report),
            bool(draining),
        )
        for (
            session, name, host, pid, version, details, opened_at, renewed_at, lease, lapsed,
            ended_at, held, report, draining,
        ) in await tx.rows("session_list", *tx.lease_clock)
    ]  # fmt: skip
