"""Sessions on SQLite: one lease row per worker process, on the clock of this boot."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from trellis.core.durations import Micros
from trellis.core.job import Fence, SessionId
from trellis.engines.sql import locks, slots
from trellis.engines.sql.rows import record_from
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import Renewed, Session, SessionLost, SessionRecord, WorkerInfo


def open_session(tx: Transaction, info: WorkerInfo, lease: Micros) -> Session:
    """Start a session."""
    session = SessionId(secrets.randbits(62) + 1)
    until = tx.lease_now + lease
    tx.run("session_open", session, *info, lease, until, tx.boot_id, tx.now, tx.now)
    return Session(session, lease, tx.now)


def renew(
    tx: Transaction,
    session: SessionId,
    held: Sequence[Fence],
    stopped: Sequence[Fence],
    busy: int,
) -> Renewed | SessionLost:
    """Extend the lease; say what the worker should know about its claims."""
    row = tx.one("session_lease", session)
    if row is None:
        return SessionLost(tx.now)
    lease, draining = row
    tx.run("session_renew", tx.lease_now + lease, tx.boot_id, tx.now, busy, session)
    tx.run("lock_outlived", session)
    for fence in stopped:
        if fence.session == session:
            shared = tx.shared
            tokens = shared.array([fence.token])
            run_through(slots.end_lingering(shared, "slot_stopped", session, tokens))
            run_through(locks.end_stopped(tx.shared, session, [fence.token]))
    records = (record_from(row) for row in tx.rows("session_held", session))
    ours = {record.head.fence: record for record in records}
    asked = (f for f in held if f in ours and ours[f].head.asked_at is not None)
    lost = (fence for fence in held if fence not in ours)
    named = set(held)
    unknown = (record for fence, record in ours.items() if fence not in named)
    return Renewed(tx.now, tuple(asked), tuple(lost), tuple(unknown), bool(draining))


def close_session(tx: Transaction, session: SessionId) -> None:
    """End a session; what lingers for handlers that may still run lingers on."""
    tx.run("session_end", tx.now, session)
    tx.run("lock_of_session", session)


def reap(tx: Transaction, session: SessionId) -> bool:
    """End a session whose lease is over."""
    if tx.one("session_alive", session, tx.boot_id, tx.lease_now) is not None:
        return False
    close_session(tx, session)
    run_through(slots.end_lingering(tx.shared, "slot_of_session", session))
    tx.run("lock_reaped", session)
    return True


def ask_drain(tx: Transaction, session: SessionId) -> bool:
    """Ask a worker process to finish and go."""
    return tx.run("session_drain", session) > 0


def list_sessions(tx: Transaction) -> list[SessionRecord]:
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
            busy,
            bool(draining),
        )
        for (
            session, name, host, pid, version, details, opened_at, renewed_at, lease,
            lapsed, ended_at, held, busy, draining,
        ) in tx.rows("session_list", tx.boot_id, tx.lease_now)
    ]  # fmt: skip
