"""Questions about the data of the memory engine: filters, groups and keys."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.fairness import tenant_of
from trellis.core.job import JobId, Relations, error_code, mentions
from trellis.core.states import LIVE
from trellis.engines.limits import Names
from trellis.engines.memory.slots import Slots
from trellis.engines.memory.store import Entry, Store
from trellis.engines.values import (
    Activity,
    Counts,
    GroupBy,
    ItemEntry,
    JobFilter,
    KeyStatus,
    LogEntry,
    Outcome,
    Page,
    QueueSettings,
    TagGroup,
)


def find(store: Store, where: JobFilter, after: int | None, limit: int) -> Page:
    """Return a page of matching jobs, newest first."""
    matching = [
        entry.record
        for entry in _matching(store, where)
        if after is None or entry.definition.row < after
    ][: limit + 1]
    page = tuple(matching[:limit])
    more = page[-1].definition.row if page and len(matching) > limit else None
    return Page(store.clock.now(), page, more)


def count(store: Store, where: JobFilter, group_by: Sequence[GroupBy]) -> Counts:
    """Count matching jobs per combination of groups."""
    found = Counter(
        tuple(_group(store, entry, group) for group in group_by)
        for entry in _matching(store, where)
    )
    if not group_by:
        found.setdefault((), 0)
    return Counts(store.clock.now(), dict(sorted(found.items())))


def ahead(store: Store, job_id: JobId, types: Sequence[str], limit: int) -> dict[Names, int]:
    """Count the claimable jobs of these types that come before this one, by lane."""
    own = store.by_id(job_id)
    if own is None:
        return {}
    lanes = Counter(
        (definition.service, definition.queue, definition.type, definition.priority)
        for entry in store.entries.values()
        if entry.availability == "ready" and store.ready.order(entry) < store.ready.order(own)
        if f"{(definition := entry.definition).service}/{definition.type}" in types
        and not store.queue(definition.service, definition.queue).paused
    )
    found: Counter[Names] = Counter()
    for (service, queue, name, _), number in lanes.items():
        found[service, queue, name] += min(number, limit)
    return dict(found)


def keys(store: Store, slots: Slots, service: str, job_type: str) -> list[KeyStatus]:
    """Return every key of a type that is in use, in order of key."""
    found: dict[str, Entry] = {}
    for entry in store.entries.values():
        definition = entry.definition
        if (definition.service, definition.type) == (service, job_type) and (
            entry.head.state in LIVE or slots.has_any(entry)
        ):
            found.setdefault(definition.key_hash or "", entry)
    found.pop("", None)
    statuses = [_status(store, slots, entry, key_hash) for key_hash, entry in found.items()]
    return sorted(statuses, key=lambda status: status.key)


def _status(store: Store, slots: Slots, entry: Entry, key_hash: str) -> KeyStatus:
    rows = sorted(slot.row for slot in slots.by_key.get(key_hash, ()))
    holders = [store.entries[row] for row in rows if row in store.entries]
    return KeyStatus(
        entry.definition.service,
        entry.definition.type,
        entry.definition.key or "",
        key_hash,
        tuple(holder.definition.id for holder in holders),
        slots.facts(key_hash).waiting,
        any(holder.head.blocked for holder in holders),
        slots.rates.spent(key_hash),
        len(rows) - len(holders),
    )


def _matching(store: Store, where: JobFilter) -> Iterator[Entry]:
    for _, entry in sorted(store.entries.items(), reverse=True):
        if entry.is_held or not _matches(entry, where):
            continue
        if _was_run_by(store, entry, where.worker):
            yield entry


def _group(store: Store, entry: Entry, group_by: GroupBy) -> str:
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
        case "worker":
            worker = store.facts_of(entry).worker
            return "" if worker is None else worker.name
        case "tenant":
            return tenant_of(entry.definition.relations) or ""
        case TagGroup(name):
            return dict(entry.definition.tags).get(name, "")


def _matches(entry: Entry, where: JobFilter) -> bool:
    definition = entry.definition
    relations = definition.relations or Relations()
    return (
        (not where.services or definition.service in where.services)
        and (not where.types or definition.type in where.types)
        and (not where.queues or definition.queue in where.queues)
        and (not where.states or entry.head.state in where.states)
        and (where.key is None or definition.key == where.key)
        and where.tenant in {None, relations.tenant}
        and where.schedule in {None, relations.schedule}
        and (not where.blocked or entry.head.blocked)
        and set(where.tags) <= set(definition.tags)
        and (where.created_from is None or definition.created_at >= where.created_from)
        and (where.created_before is None or definition.created_at < where.created_before)
        and (where.id_prefix is None or definition.id.startswith(where.id_prefix))
        and (where.id_suffix is None or definition.id.endswith(where.id_suffix))
        and (where.error_contains is None or mentions(entry.head.error, where.error_contains))
        and _ended_within(entry.head.finished_at, where)
        and (where.batch is None or where.batch in entry.batches)
        and where.parent in {None, relations.parent}
    )


def _was_run_by(store: Store, entry: Entry, worker: str | None) -> bool:
    if worker is None:
        return True
    sessions = {event.fence.session for event in entry.journal if event.fence}
    return any(
        worker in {name.name, name.host, f"{session:016x}"}
        for session in sessions
        if (name := store.worker_name(session)) is not None
    )


def _ended_within(finished_at: Instant | None, where: JobFilter) -> bool:
    if finished_at is None:
        return where.finished_from is None and where.finished_before is None
    return (where.finished_from is None or finished_at >= where.finished_from) and (
        where.finished_before is None or finished_at < where.finished_before
    )


class ReadVerbs:
    """The verbs that read jobs and keys."""

    _lock: threading.RLock
    _store: Store
    _slots: Slots

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""
        with self._lock:
            return find(self._store, where, after, limit)

    async def count(self, where: JobFilter, *group_by: GroupBy) -> Counts:
        """Count matching jobs per combination of groups."""
        with self._lock:
            return count(self._store, where, group_by)

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job."""
        with self._lock:
            entry = self._store.by_id(job_id)
            return [] if entry is None else list(entry.journal)

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation ended."""
        with self._lock:
            entry = self._store.by_id(job_id)
            return [] if entry is None else list(entry.outcomes)

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt reported."""
        with self._lock:
            entry = self._store.by_id(job_id)
            return None if entry is None else entry.latest_activity

    async def items(self, job_id: JobId) -> list[ItemEntry]:
        """Return the items of all attempts of a job."""
        with self._lock:
            entry = self._store.by_id(job_id)
            return [] if entry is None else entry.item_entries

    async def ahead(self, job_id: JobId, types: Sequence[str], limit: int) -> dict[Names, int]:
        """Count the claimable jobs of these types that a claim takes before this one."""
        with self._lock:
            return ahead(self._store, job_id, types, limit)

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines."""
        with self._lock:
            entry = self._store.by_id(job_id)
            lines = [] if entry is None else [line for line in entry.logs if line.number > after]
            return lines[:limit]

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that is in use."""
        with self._lock:
            return keys(self._store, self._slots, service, job_type)

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""
        with self._lock:
            return [self._store.queues[name] for name in sorted(self._store.queues)]
