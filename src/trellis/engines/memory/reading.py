"""The reading verbs of the memory engine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import JobId
from trellis.core.states import WAITING
from trellis.engines.clock import Clock
from trellis.engines.memory.entries import Entry, Tables
from trellis.engines.memory.slots import Slots
from trellis.engines.values import (
    Activity,
    Counts,
    CrossCounts,
    GroupBy,
    JobFilter,
    KeyStatus,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    error_code,
    mentions,
)


class Reading:
    """Everything that only looks."""

    _clock: Clock
    _lock: threading.RLock
    _tables: Tables
    _slots: Slots

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs."""
        with self._lock:
            entries = [self._tables.by_id(job_id) for job_id in ids]
            records = (None if entry is None else entry.record for entry in entries)
            return Loaded(self._clock.now(), tuple(records))

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""
        with self._lock:
            fitting = [
                entry.record
                for entry in self._matching(where)
                if after is None or entry.definition.row < after
            ][: limit + 1]
            page = tuple(fitting[:limit])
            more = page[-1].definition.row if page and len(fitting) > limit else None
            return Page(self._clock.now(), page, more)

    async def count(self, where: JobFilter, group_by: GroupBy) -> Counts:
        """Count matching jobs per group."""
        crossed = await self.count_by(where, (group_by,))
        return Counts(crossed.as_of, {name: number for (name,), number in crossed.groups.items()})

    async def count_by(self, where: JobFilter, groups: Sequence[GroupBy]) -> CrossCounts:
        """Count matching jobs per combination of groups."""
        with self._lock:
            found = Counter(
                tuple(_group(entry, group) for group in groups) for entry in self._matching(where)
            )
            return CrossCounts(self._clock.now(), dict(sorted(found.items())))

    def _matching(self, where: JobFilter) -> Iterator[Entry]:
        for _, entry in sorted(self._tables.entries.items(), reverse=True):
            if _fits(entry, where):
                yield entry

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job."""
        with self._lock:
            entry = self._tables.by_id(job_id)
            return [] if entry is None else list(entry.journal)

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation ended."""
        with self._lock:
            entry = self._tables.by_id(job_id)
            return [] if entry is None else list(entry.outcomes)

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt said."""
        with self._lock:
            entry = self._tables.by_id(job_id)
            if entry is None or entry.activity is None:
                return None
            return entry.activity if entry.activity.claim == entry.head.claims else None

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines."""
        with self._lock:
            entry = self._tables.by_id(job_id)
            lines = [] if entry is None else [line for line in entry.logs if line.number > after]
            return lines[:limit]

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that is in use."""
        with self._lock:
            found: dict[str, Entry] = {}
            for entry in self._tables.entries.values():
                definition = entry.definition
                if (definition.service, definition.type) == (service, job_type) and (
                    entry.head.state in WAITING or definition.key_hash in self._slots.by_key
                ):
                    found.setdefault(definition.key_hash or "", entry)
            found.pop("", None)
            statuses = [self._status(entry, key_hash) for key_hash, entry in found.items()]
            return sorted(statuses, key=lambda status: status.key)

    def _status(self, entry: Entry, key_hash: str) -> KeyStatus:
        rows = sorted(slot.row for slot in self._slots.by_key.get(key_hash, ()))
        holders = [self._tables.entries[row] for row in rows if row in self._tables.entries]
        waiting = self._slots.facts(key_hash).waiting
        return KeyStatus(
            entry.definition.service,
            entry.definition.type,
            entry.definition.key or "",
            key_hash,
            tuple(holder.definition.id for holder in holders),
            waiting,
            any(holder.head.blocked for holder in holders),
        )

    async def removed(self, ids: Sequence[JobId]) -> list[bool]:
        """Tell which of these were removed."""
        with self._lock:
            return [job_id in self._tables.removed for job_id in ids]


def _group(entry: Entry, group_by: GroupBy) -> str:
    match group_by:
        case "state":
            return entry.head.state.value
        case "type":
            return entry.definition.type
        case "queue":
            return entry.definition.queue
        case "service":
            return entry.definition.service
        case "error":
            return error_code(entry.head.error)


def _fits(entry: Entry, where: JobFilter) -> bool:
    definition = entry.definition
    return (
        (not where.services or definition.service in where.services)
        and (not where.types or definition.type in where.types)
        and (not where.queues or definition.queue in where.queues)
        and (not where.states or entry.head.state in where.states)
        and (where.key is None or definition.key == where.key)
        and set(where.tags) <= set(definition.tags)
        and (where.created_from is None or definition.created_at >= where.created_from)
        and (where.created_before is None or definition.created_at < where.created_before)
        and (where.id_prefix is None or definition.id.startswith(where.id_prefix))
        and (where.id_suffix is None or definition.id.endswith(where.id_suffix))
        and (where.error_contains is None or mentions(entry.head.error, where.error_contains))
        and _ended_within(entry.head.finished_at, where)
    )


def _ended_within(finished_at: Instant | None, where: JobFilter) -> bool:
    if finished_at is None:
        return where.finished_from is None and where.finished_before is None
    return (where.finished_from is None or finished_at >= where.finished_from) and (
        where.finished_before is None or finished_at < where.finished_before
    )
