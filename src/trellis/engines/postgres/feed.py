"""The feed of all events in commit order, which only PostgreSQL has."""

from __future__ import annotations

from typing import NamedTuple

from trellis.core.events import Event
from trellis.core.job import JobId
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.rows import event_from


class Position(NamedTuple):
    """A position in the feed of all events: no event is ever added before it."""

    xid: int = 0
    seq: int = 0


class FeedEntry(NamedTuple):
    """One event in the feed."""

    position: Position
    job_id: JobId
    event: Event


async def feed(tx: Transaction, after: Position, limit: int) -> list[FeedEntry]:
    """Return events of all jobs after a position; events of running transactions come later."""
    return [
        FeedEntry(Position(xid, seq), job_id, event_from(row))
        for xid, seq, job_id, *row in await tx.rows("read_feed", *after, limit)
    ]
