"""Verbs for operators: the drain of all queues, facts of jobs, worker processes."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.durations import Instant, Micros
from trellis.core.events import EventKind
from trellis.core.job import JobId, SessionId
from trellis.engines.audit import By, drain_of_all
from trellis.engines.operating import (
    ALL_QUEUES,
    RATE_DURATIONS,
    RATE_WINDOW,
    Drain,
    DrainChange,
    JobFacts,
    Lane,
    Rates,
    RecentEvents,
    WorkerName,
    rates_of,
)
from trellis.engines.sql import audit
from trellis.engines.sql.transaction import Transaction


async def set_drain(tx: Transaction, drain: Drain) -> None:
    """Accept no new job in any queue, or accept them again; record who asked and why."""
    await tx.read_clock()
    before = await drain_changes(tx, 1)
    await tx.run("queue_set", *ALL_QUEUES, False, drain.on)
    await tx.run("drain_add", tx.now, *drain)
    change = drain_of_all(bool(before) and before[0].drain.on, drain.on)
    await audit.record(tx, change, By(drain.actor, drain.reason))


async def drain_changes(tx: Transaction, limit: int) -> list[DrainChange]:
    """Return what `set_drain` changed, the latest first."""
    return [
        DrainChange(at, Drain(bool(on), actor, reason))
        for at, on, actor, reason in await tx.rows("drain_list", limit)
    ]


async def facts(tx: Transaction, ids: Sequence[JobId]) -> dict[JobId, JobFacts]:
    """Return facts about these jobs."""
    return {
        job_id: JobFacts(
            started_at,
            updated_at,
            session,
            None if name is None else WorkerName(name, host, pid),
            result,
        )
        for job_id, started_at, updated_at, session, name, host, pid, result in await tx.rows(
            "read_facts", tx.array(list(ids))
        )
    }


async def identify(tx: Transaction, sessions: Sequence[SessionId]) -> dict[SessionId, WorkerName]:
    """Return the worker processes of sessions."""
    rows = await tx.rows("session_names", tx.array(list(sessions)))
    return {SessionId(session): WorkerName(name, host, pid) for session, name, host, pid in rows}


async def rates(tx: Transaction, limit: int) -> Rates:
    """Return what has happened recently, from the latest events; their numbers only grow."""
    await tx.read_clock()
    last = await tx.value("event_last") or 0
    since = tx.now - RATE_WINDOW
    events: dict[Lane, RecentEvents] = {}
    read = 0
    for *lane, started, failed, first_at, count in await tx.rows(
        "rate_events", EventKind.STARTED.value, last - limit, since
    ):
        events[_lane(lane)] = RecentEvents(started, failed, first_at)
        read += count
    durations: dict[Lane, list[Micros]] = {}
    for *lane, duration in await tx.rows("rate_durations", last - limit, since, RATE_DURATIONS):
        durations.setdefault(_lane(lane), []).append(duration)
    due: dict[Lane, Instant] = {}
    for *lane, run_at in await tx.rows("rate_due_since", tx.now):
        due[_lane(lane)] = min(due.get(_lane(lane), tx.now), run_at)
    # Numbers that no event has, of transactions that were rolled back, are among the latest.
    return rates_of(tx.now, events, durations, due, is_cut=read > limit // 2)


def _lane(names: Sequence[str]) -> Lane:
    service, queue, job_type = names
    return service, queue, job_type
