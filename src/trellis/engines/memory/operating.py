"""Verbs of the memory engine for operators: the drain of all queues, facts of jobs, workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import islice

from trellis.core.durations import Instant, Micros
from trellis.core.events import EventKind
from trellis.core.job import JobId, SessionId
from trellis.core.states import ENDED, WAITING
from trellis.engines.audit import (
    OPERATOR,
    AuditEntry,
    AuditFilter,
    By,
    aging_change,
    drain_of,
    drain_of_all,
    removal_of,
    settings_of,
)
from trellis.engines.clock import Clock
from trellis.engines.hints import Hints
from trellis.engines.memory.store import Entry, Store
from trellis.engines.operating import (
    RATE_DURATIONS,
    RATE_EVENTS,
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
from trellis.engines.values import QueueSettings, Removal


class OperatorVerbs:
    """The part of the memory engine that operators use."""

    _clock: Clock
    _lock: threading.RLock
    _store: Store
    _is_kept: Callable[[Entry], bool]
    _drop: Callable[[Entry], None]
    _hints: Hints

    async def set_drain(self, drain: Drain) -> None:
        """Accept no new job in any queue, or accept them again."""
        with self._lock:
            store = self._store
            change = drain_of_all(store.is_draining, drain.on)
            store.drain_changes.append(DrainChange(self._clock.now(), drain))
            store.record(change, By(drain.actor, drain.reason))

    async def remove(self, ids: Sequence[JobId], by: By = OPERATOR) -> list[Removal]:
        """Remove ended jobs at once."""
        with self._lock:
            return [self._remove(job_id, by) for job_id in ids]

    def _remove(self, job_id: JobId, by: By) -> Removal:
        entry = self._store.by_id(job_id)
        if entry is None:
            return "missing"
        if entry.head.state not in ENDED:
            return "live"
        if self._store.dependencies.is_needed(entry):
            return "needed"
        if self._is_kept(entry):
            return "in_batch"
        self._drop(entry)
        self._store.record(removal_of(job_id, entry.head.state.value), by)
        return "removed"

    async def set_queue(self, settings: QueueSettings, by: By = OPERATOR) -> None:
        """Pause, drain or reopen a queue."""
        with self._lock:
            change = settings_of(self._store.queue(settings.service, settings.queue), settings)
            self._store.queues[settings.service, settings.queue] = settings
            if change is not None:
                self._store.record(change, by)
        self._hints.publish(("ready",))

    async def ask_drain(self, session: SessionId, by: By = OPERATOR) -> bool:
        """Ask a worker process to finish its jobs and exit."""
        with self._lock:
            if self._store.is_over(session):
                return False
            state = self._store.sessions[session]
            if not state.draining:
                state.draining = True
                self._store.record(drain_of(session, state.info.name), by)
            return True

    async def drain_changes(self, limit: int = 20) -> list[DrainChange]:
        """Return what `set_drain` changed, the latest first."""
        with self._lock:
            return self._store.drain_changes[::-1][:limit]

    async def set_aging(self, aging: Micros | None, by: By) -> None:
        """Let waiting jobs age, or not."""
        with self._lock:
            change = aging_change(self._store.ready.aging, aging)
            if change is None:
                return
            self._store.record(change, by)
            self._store.ready.aging = aging
        self._hints.publish(("ready",))

    async def aging(self) -> Micros | None:
        """Return the span of aging."""
        with self._lock:
            return self._store.ready.aging

    async def audit(
        self, where: AuditFilter, *, after: int | None = None, limit: int = 50
    ) -> list[AuditEntry]:
        """Return a page of the audit, the latest first."""
        with self._lock:
            matching = (
                entry
                for entry in reversed(self._store.audit)
                if (after is None or entry.number < after) and where.matches(entry)
            )
            return list(islice(matching, limit))

    async def prune_audit(self, keep: Micros, limit: int) -> int:
        """Remove the oldest entries of the audit."""
        with self._lock:
            audit, oldest = self._store.audit, self._clock.now() - keep
            old = list(islice((entry for entry in audit if entry.at < oldest), limit))
            self._store.audit = [entry for entry in audit if entry not in old]
            return len(old)

    async def facts(self, ids: Sequence[JobId]) -> dict[JobId, JobFacts]:
        """Return facts about these jobs."""
        with self._lock:
            entries = {job_id: self._store.by_id(job_id) for job_id in ids}
            return {
                job_id: self._store.facts_of(entry)
                for job_id, entry in entries.items()
                if entry is not None
            }

    async def identify(self, sessions: Sequence[SessionId]) -> dict[SessionId, WorkerName]:
        """Return the worker processes of sessions."""
        with self._lock:
            found = {session: self._store.worker_name(session) for session in sessions}
            return {session: name for session, name in found.items() if name is not None}

    async def rates(self, limit: int = RATE_EVENTS) -> Rates:
        """Return what has happened recently."""
        with self._lock:
            now = self._clock.now()
            events, is_cut = _recent_events(self._store, now, limit)
            durations, since = _recent_durations(self._store, now), _due_since(self._store, now)
            return rates_of(now, events, durations, since, is_cut=is_cut)


def _recent_events(store: Store, now: Instant, limit: int) -> tuple[dict[Lane, RecentEvents], bool]:
    recent = sorted(
        (
            (event.at, entry.lane, event)
            for entry in store.entries.values()
            for event in entry.journal
            if event.at >= now - RATE_WINDOW
        ),
        key=lambda each: each[0],
    )
    found: dict[Lane, RecentEvents] = {}
    for at, lane, event in recent[-limit:]:
        before = found.get(lane) or RecentEvents(0, 0, at)
        found[lane] = RecentEvents(
            before.started + (event.kind is EventKind.STARTED),
            before.failed + ("error" in (event.data or {})),
            before.first_at,
        )
    return found, len(recent) > limit // 2


def _recent_durations(store: Store, now: Instant) -> dict[Lane, list[Micros]]:
    ended = sorted(
        (outcome.finished_at, entry.lane, outcome.finished_at - outcome.started_at)
        for entry in store.entries.values()
        for outcome in entry.outcomes
        if outcome.started_at is not None and outcome.finished_at >= now - RATE_WINDOW
    )
    found: dict[Lane, list[Micros]] = {}
    for _, lane, duration in ended[-RATE_DURATIONS:]:
        found.setdefault(lane, []).append(duration)
    return found


def _due_since(store: Store, now: Instant) -> dict[Lane, Instant]:
    found: dict[Lane, Instant] = {}
    for entry in store.entries.values():
        if entry.is_unresolved:
            continue
        if entry.head.state in WAITING and entry.head.run_at <= now:
            found[entry.lane] = min(found.get(entry.lane, now), entry.head.run_at)
    return found
