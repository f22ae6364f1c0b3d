"""The reading verbs on PostgreSQL, on a connection whose plans look at what is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from trellis.core.events import Event
from trellis.core.job import JobId, JobRecord
from trellis.engines.postgres.connection import Link
from trellis.engines.postgres.statements import fragments
from trellis.engines.sql.filters import Filters
from trellis.engines.sql.rows import decode_failure, event_from, record_from, state_from
from trellis.engines.values import (
    Activity,
    Counts,
    GroupBy,
    Item,
    JobFilter,
    KeyStatus,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    Progress,
    QueueSettings,
    mentions,
)


class Place(NamedTuple):
    """A place in the feed of all events: nothing is ever added before it."""

    xid: int = 0
    seq: int = 0


class FeedEntry(NamedTuple):
    """One event in the feed."""

    place: Place
    job_id: JobId
    event: Event


class Reader:
    """Reads single jobs on the connection that works, and all else on one of its own.

    So a worker needs no further connection, and people's questions never hold it up.
    """

    def __init__(self, hot: Link, link: Link, schema: str) -> None:
        self._hot = hot
        self._link = link
        self._fragments = fragments(schema)
        self._filters = Filters(self._fragments, numbered=True)

    def _text(self, name: str, **words: object) -> str:
        return self._fragments[name].format(**words)

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs; look for removals only of those that are missing."""
        now = await self._hot.value("clock")
        rows = await self._hot.rows("record_by_id", list(ids))
        found: dict[str, JobRecord] = {row[1]: record_from(row) for row in rows}
        records = tuple(found.get(job_id) for job_id in ids)
        if None not in records:
            return Loaded(now, records)
        missing = [job_id for job_id in ids if job_id not in found]
        removed = await self._hot.rows("read_removed", missing)
        return Loaded(now, records, frozenset(job_id for (job_id,) in removed))

    async def find(self, where: JobFilter, after: int | None, limit: int) -> Page:
        """Return a page of matching jobs, newest first."""
        condition, values = await self._where(where)
        place = len(values)
        query = self._text("find", where=condition, after=place + 1, limit=place + 2)
        now = await self._link.value("clock")
        rows = await self._link.query(query, *values, after, limit + 1)
        page = tuple(record_from(row) for row in rows[:limit])
        more = page[-1].definition.row if page and len(rows) > limit else None
        return Page(now, page, more)

    async def _where(self, where: JobFilter) -> tuple[str, list[object]]:
        """Return the conditions of a filter; errors are looked through here, in one meaning."""
        if where.error_contains is None:
            return self._filters.where(where)
        condition, values = self._filters.where(where._replace(error_contains=None))
        query = self._text("find_errors", where=condition)
        rows = await self._link.query(query, *values)
        wanted = where.error_contains
        errors = [error for (error,) in rows if mentions(decode_failure(error), wanted)]
        return self._filters.where(where, errors)

    async def count(self, where: JobFilter, group_by: Sequence[GroupBy]) -> Counts:
        """Count matching jobs per combination of groups."""
        condition, values = await self._where(where)
        fragment = "count" if group_by else "count_all"
        query = self._text(fragment, where=condition, groups=self._filters.groups(group_by))
        now = await self._link.value("clock")
        found = await self._link.query(query, *values)
        counted = sorted((tuple(names), number) for number, *names in found)
        return Counts(now, dict(counted))

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job."""
        return [event_from(row) for row in await self._hot.rows("read_journal", job_id)]

    async def feed(self, after: Place, limit: int) -> list[FeedEntry]:
        """Return events of all jobs behind a place; what is still being written comes later."""
        return [
            FeedEntry(Place(xid, seq), job_id, event_from(row))
            for xid, seq, job_id, *row in await self._link.rows("read_feed", *after, limit)
        ]

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation ended."""
        return [
            Outcome(*row)._replace(state=state_from(row[1]), error=decode_failure(row[6]))
            for row in await self._hot.rows("read_outcomes", job_id)
        ]

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt said."""
        for job, claim, began_at, seen_at, progress, phase in await self._hot.rows(
            "read_note", job_id
        ):
            items = tuple(Item(*row) for row in await self._hot.rows("read_items", job))
            latest = Progress(*json.loads(progress)) if progress else None
            return Activity(claim, began_at, seen_at, latest, phase, items)
        return None

    async def logs(self, job_id: JobId, after: int, limit: int) -> list[LogEntry]:
        """Return log lines."""
        return [LogEntry(*row) for row in await self._hot.rows("read_logs", job_id, after, limit)]

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that is in use."""
        rows = await self._link.rows("read_keys", service, job_type)
        return [
            KeyStatus(service, job_type, key, key_hash, tuple(holders), waiting, blocked)
            for key, key_hash, holders, waiting, blocked in rows
        ]

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""
        return [QueueSettings(*row) for row in await self._link.rows("queue_settings")]
