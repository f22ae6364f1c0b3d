"""Questions about the data of the memory engine: filters, groups and keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from trellis.core.durations import Instant
from trellis.core.states import WAITING
from trellis.engines.memory.slots import Slots
from trellis.engines.memory.store import Entry, Store
from trellis.engines.values import (
    Counts,
    GroupBy,
    JobFilter,
    KeyStatus,
    Page,
    error_code,
    mentions,
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
        tuple(_group(entry, group) for group in group_by) for entry in _matching(store, where)
    )
    if not group_by:
        found.setdefault((), 0)
    return Counts(store.clock.now(), dict(sorted(found.items())))


def keys(store: Store, slots: Slots, service: str, job_type: str) -> list[KeyStatus]:
    """Return every key of a type that is in use, in order of key."""
    found: dict[str, Entry] = {}
    for entry in store.entries.values():
        definition = entry.definition
        if (definition.service, definition.type) == (service, job_type) and (
            entry.head.state in WAITING or definition.key_hash in slots.by_key
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
    )


def _matching(store: Store, where: JobFilter) -> Iterator[Entry]:
    for _, entry in sorted(store.entries.items(), reverse=True):
        if _matches(entry, where):
            yield entry


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


def _matches(entry: Entry, where: JobFilter) -> bool:
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
