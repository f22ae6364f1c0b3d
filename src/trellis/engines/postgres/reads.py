"""Reads that only PostgreSQL has: the feed of all events; and the connection for reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from trellis.core.events import Event
from trellis.core.job import JobId
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.filters import Filters
from trellis.engines.sql.rows import Row, event_from


class Position(NamedTuple):
    """A position in the feed of all events: no event is ever added before it."""

    xid: int = 0
    seq: int = 0


class FeedEntry(NamedTuple):
    """One event in the feed."""

    position: Position
    job_id: JobId
    event: Event


class Queries(Transaction):
    """Reads on one connection; each statement is a transaction."""

    __slots__ = ("_link", "filters")

    def __init__(self, link: ServerConnection, registry: Registry, filters: Filters) -> None:
        super().__init__(link, registry)
        self._link = link
        self.filters = filters

    async def query(self, text: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401
        """Run a statement by its text; return its rows."""
        return await self._link.query(text, *values)


async def feed(tx: Transaction, after: Position, limit: int) -> list[FeedEntry]:
    """Return events of all jobs after a position; events of running transactions come later."""
    return [
        FeedEntry(Position(xid, seq), job_id, event_from(row))
        for xid, seq, job_id, *row in await tx.rows("read_feed", *after, limit)
    ]
