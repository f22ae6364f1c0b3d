"""The reading verbs on SQLite, on a connection of their own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import JobId
from trellis.engines.sql.filters import Filters
from trellis.engines.sql.rows import (
    Row,
    decode_failure,
    encode_ids,
    event_from,
    record_from,
    state_from,
)
from trellis.engines.sqlite.transaction import FRAGMENTS, STATEMENTS
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

_FILTERS: Final = Filters(FRAGMENTS, as_list=json.dumps)


class Reader:
    """Reads through one connection, for one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.create_function("trellis_mentions", 2, _mentions, deterministic=True)

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for questions about itself."""
        return self._connection

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _rows(self, name: str, *values: object) -> list[Row]:
        return self._connection.execute(STATEMENTS[name], values).fetchall()

    def load(self, ids: Sequence[JobId], now: Instant) -> Loaded:
        """Return these jobs; look for removals only of those that are missing."""
        found = [(job_id, self._rows("record_by_id", encode_ids([job_id]))) for job_id in ids]
        records = tuple(record_from(rows[0]) if rows else None for _, rows in found)
        missing = (job_id for job_id, rows in found if not rows)
        removed = frozenset(job_id for job_id in missing if self._rows("read_removed", job_id))
        return Loaded(now, records, removed)

    def find(self, where: JobFilter, after: int | None, limit: int, now: Instant) -> Page:
        """Return a page of matching jobs, newest first."""
        condition, values = _FILTERS.where(where)
        query = FRAGMENTS["find"].format(where=condition)
        rows = self._connection.execute(query, (*values, after, after, limit + 1)).fetchall()
        page = tuple(record_from(row) for row in rows[:limit])
        more = page[-1].definition.row if page and len(rows) > limit else None
        return Page(now, page, more)

    def count(self, where: JobFilter, group_by: Sequence[GroupBy], now: Instant) -> Counts:
        """Count matching jobs per combination of groups."""
        condition, values = _FILTERS.where(where)
        fragment = FRAGMENTS["count" if group_by else "count_all"]
        query = fragment.format(where=condition, groups=_FILTERS.groups(group_by))
        found = self._connection.execute(query, values)
        return Counts(now, {tuple(names): number for number, *names in found})

    def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job."""
        return [event_from(row) for row in self._rows("read_journal", job_id)]

    def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation ended."""
        return [
            Outcome(*row)._replace(state=state_from(row[1]), error=decode_failure(row[6]))
            for row in self._rows("read_outcomes", job_id)
        ]

    def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt said."""
        for job, claim, began_at, seen_at, progress, phase in self._rows("read_note", job_id):
            items = tuple(Item(*row) for row in self._rows("read_items", job))
            latest = Progress(*json.loads(progress)) if progress else None
            return Activity(claim, began_at, seen_at, latest, phase, items)
        return None

    def logs(self, job_id: JobId, after: int, limit: int) -> list[LogEntry]:
        """Return log lines."""
        return [LogEntry(*row) for row in self._rows("read_logs", job_id, after, limit)]

    def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that is in use."""
        return [
            KeyStatus(
                service, job_type, key, key_hash, tuple(json.loads(holders)), waiting, bool(blocked)
            )
            for key, key_hash, holders, waiting, blocked in self._rows(
                "read_keys", service, job_type
            )
        ]

    def next_due(self) -> Instant | None:
        """Return when the next waiting job becomes due."""
        ((moment,),) = self._rows("next_due")
        return None if moment is None else int(moment)

    def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""
        return [
            QueueSettings(service, queue, bool(paused), bool(draining))
            for service, queue, paused, draining in self._rows("queue_settings")
        ]


def _mentions(error: str | None, text: str) -> bool:
    return mentions(decode_failure(error), text)
