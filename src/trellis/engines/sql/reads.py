"""Reads: jobs by id and by filter, what is kept about a job, keys and queues in use."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol

from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import JobId, JobRecord, is_possible_id, mentions
from trellis.core.limits import Spent
from trellis.engines.limits import Names
from trellis.engines.projection import KnownJob
from trellis.engines.sql.filters import Filters
from trellis.engines.sql.rows import Row, decode_failure, event_from, record_from, state_from
from trellis.engines.sql.transaction import Transaction
from trellis.engines.values import (
    Activity,
    Counts,
    GroupBy,
    Item,
    ItemEntry,
    JobFilter,
    KeyStatus,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    Progress,
    QueueSettings,
)

#: How many characters the payloads of one answer of `known` may have.
_MOST_TEXT: Final = 4_000_000


class Queries(Transaction, Protocol):
    """A transaction that also runs statements put together from fragments."""

    filters: Filters

    def query(self, text: str, *values: Any) -> Awaitable[Sequence[Row]]:  # noqa: ANN401
        """Run a statement by its text; return its rows."""


async def load(tx: Transaction, ids: Sequence[JobId]) -> Loaded:
    """Return these jobs; look for removals only of those that are missing."""
    rows = await tx.rows("record_by_id", tx.array([i for i in ids if is_possible_id(i)]))
    await tx.read_clock()  # after the rows: not before any event of these jobs
    found: dict[JobId, JobRecord] = {row[1]: record_from(row) for row in rows}
    records = tuple(found.get(job_id) for job_id in ids)
    if None not in records:
        return Loaded(tx.now, records)
    missing = [job_id for job_id in ids if job_id not in found and is_possible_id(job_id)]
    removed = await tx.rows("read_removed", tx.array(missing))
    return Loaded(tx.now, records, frozenset(job_id for (job_id,) in removed))


async def known(tx: Transaction, ids: Sequence[JobId]) -> list[KnownJob]:
    """Return those of these jobs that a projection has, as many as an answer may hold."""
    wanted = [each for each in ids if is_possible_id(each)]
    counts: dict[JobId, dict[str, int]] = {}
    latest: dict[JobId, Instant] = {}
    for job_id, kind, number, at in await tx.rows("projection_count_events", tx.array(wanted)):
        counts.setdefault(job_id, {})[kind] = number
        latest[job_id] = max(at, latest.get(job_id, 0))
    found, room = [], _MOST_TEXT
    for record in (await load(tx, list(counts))).records:
        if record is None:
            continue
        definition, head = record
        room -= len(definition.payload)
        events = counts[definition.id]
        # The two reads may be of different moments. Each event is one version.
        if head.version == sum(events.values()) and room >= 0:
            found.append(KnownJob(record, events, latest[definition.id]))
    return found


async def find(tx: Queries, where: JobFilter, after: int | None, limit: int) -> Page:
    """Return a page of matching jobs, newest first."""
    condition, values = await _where(tx, where)
    text = tx.filters.statement(
        "find", where=condition, after=len(values) + 1, limit=len(values) + 2
    )
    rows = await tx.query(text, *values, after, limit + 1)
    await tx.read_clock()  # after the rows: not before any event of these jobs
    page = tuple(record_from(row) for row in rows[:limit])
    more = page[-1].definition.row if page and len(rows) > limit else None
    return Page(tx.now, page, more)


async def count(tx: Queries, where: JobFilter, group_by: Sequence[GroupBy]) -> Counts:
    """Count matching jobs per combination of groups."""
    groups, bound = tx.filters.groups(group_by)
    condition, values = await _where(tx, where, bound)
    name = "count" if group_by else "count_all"
    places = ", ".join(str(number) for number, _ in enumerate(group_by, 2))
    text = tx.filters.statement(name, where=condition, groups=groups, places=places)
    await tx.read_clock()
    rows = await tx.query(text, *values)
    return Counts(tx.now, dict(sorted((tuple(names), number) for number, *names in rows)))


async def _where(
    tx: Queries, where: JobFilter, bound: Sequence[object] = ()
) -> tuple[str, list[object]]:
    """Return the conditions of a filter, and the values up to their end.

    Databases differ in what they call the same letter in another case, so Python compares the texts
    of errors: in a function that the database calls, or here, before the query.
    """
    if where.error_contains is None or tx.filters.searches_errors:
        return tx.filters.where(where, bound=bound)
    condition, values = tx.filters.where(where._replace(error_contains=None))
    rows = await tx.query(tx.filters.statement("find_errors", where=condition), *values)
    wanted = where.error_contains
    errors = [error for (error,) in rows if mentions(decode_failure(error), wanted)]
    return tx.filters.where(where, errors, bound)


async def journal(tx: Transaction, job_id: JobId) -> list[Event]:
    """Return all events of a job."""
    return [event_from(row) for row in await tx.rows("read_journal", job_id)]


async def outcomes(tx: Transaction, job_id: JobId) -> list[Outcome]:
    """Return how each generation of a job ended."""
    return [
        Outcome(*row)._replace(state=state_from(row[1]), error=decode_failure(row[6]))
        for row in await tx.rows("read_outcomes", job_id)
    ]


async def activity(tx: Transaction, job_id: JobId) -> Activity | None:
    """Return what the latest attempt reported."""
    row = await tx.one("read_note", job_id)
    if row is None:
        return None
    claim, began_at, seen_at, progress, phase = row
    latest = Progress(*json.loads(progress)) if progress else None
    current = tuple(each.item for each in await items(tx, job_id) if each.claim == claim)
    return Activity(claim, began_at, seen_at, latest, phase, current)


async def ahead(
    tx: Transaction, job_id: JobId, types: Sequence[str], limit: int
) -> dict[Names, int]:
    """Count the claimable jobs of these types that a claim takes before this one."""
    rows = await tx.rows("read_ahead", limit, tx.array(list(types)), job_id)
    return {(service, queue, name): number for service, queue, name, number in rows}


async def items(tx: Transaction, job_id: JobId) -> list[ItemEntry]:
    """Return the items of all attempts of a job."""
    return [
        ItemEntry(claim, Item(name, status, detail, phase))
        for claim, phase, name, status, detail in await tx.rows("read_items", job_id)
    ]


async def logs(tx: Transaction, job_id: JobId, after: int, limit: int) -> list[LogEntry]:
    """Return log lines of a job."""
    return [LogEntry(*row) for row in await tx.rows("read_logs", job_id, after, limit)]


async def keys(tx: Transaction, service: str, job_type: str) -> list[KeyStatus]:
    """Return every key of a type that is in use."""
    return [
        KeyStatus(
            service, job_type, key, key_hash, tuple(json.loads(holders)), waiting, bool(blocked),
            Spent(*spent), removed,
        )
        for key, key_hash, holders, waiting, blocked, *spent, removed in await tx.rows(
            "read_keys", service, job_type
        )
    ]  # fmt: skip


async def next_due(tx: Transaction) -> Instant | None:
    """Return when the next delayed job becomes due, or a key may be handed over by its rate."""
    moment: Instant | None = await tx.value("next_due")
    return moment


async def queue_settings(tx: Transaction) -> list[QueueSettings]:
    """Return the settings of every queue that has any."""
    return [
        QueueSettings(service, queue, bool(paused), bool(draining))
        for service, queue, paused, draining in await tx.rows("queue_settings")
    ]
