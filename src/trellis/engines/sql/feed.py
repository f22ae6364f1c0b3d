"""The feed on the SQL engines, over the journal of all jobs.

On SQLite events are numbered in commit order, because there is one writer. On PostgreSQL the order
is (transaction, number), and the feed ends before the oldest transaction that still runs: below it
nothing can be added. There is no index of single events by that order, only a summary per range of
pages, so a page is looked for in windows of transactions that double until it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.engines.feed import (
    NOW,
    Changes,
    Cursor,
    Expired,
    FeedEntry,
    Horizon,
    Position,
    answer,
    expired,
    read_cursor,
    too_new,
)
from trellis.engines.sql.reads import Queries
from trellis.engines.sql.rows import Row, decode_tags, event_from
from trellis.engines.sql.transaction import Transaction

#: Transactions in the first window of a page.
_WINDOW: Final = 256


async def changes(tx: Queries, kind: str, after: str | None, limit: int) -> Changes | Expired:
    """Return the events after a cursor, in order, or that some of them were removed."""
    # First of all: what commits after this look is not before the end.
    end = Position(*await _row(tx, "feed_end"))
    if after is None or after == NOW:
        start = Position() if after is None else end
        cursor = Cursor(start, accepted=(await _horizon(tx)).position)
    else:
        cursor = read_cursor(kind, after)
        if cursor.position > end:
            return too_new(kind, await _horizon(tx))
    if after == NOW:
        return answer(kind, cursor, (), end, is_last=True)
    rows, is_last = await _page(tx, cursor.position, end, limit)
    horizon = await _horizon(tx)  # after the events: a removal in between is noticed
    if cursor.has_lost(horizon):
        return expired(kind, cursor, horizon)
    return answer(kind, cursor, map(_entry, rows), end, is_last=is_last)


async def _page(
    tx: Queries, position: Position, end: Position, limit: int
) -> tuple[Sequence[Row], bool]:
    rows: list[Row] = []
    window = _WINDOW
    while True:
        until = min(position.xid + window, end.xid)
        found = await tx.rows("feed_read", *position, until, limit - len(rows))
        rows += found
        if len(rows) >= limit:
            return rows, False
        if until >= end.xid:
            return rows, True
        position = Position(until, 0)
        window *= 2


async def raise_horizon(tx: Transaction, jobs: Sequence[Row]) -> None:
    """Keep the position of the last event of these jobs, whose events are removed next."""
    await tx.run_many("feed_raise", jobs)


async def _horizon(tx: Queries) -> Horizon:
    xid, seq, at = await _row(tx, "feed_horizon")
    return Horizon(Position(xid, seq), at)


async def _row(tx: Queries, name: str) -> Row:
    row = await tx.one(name)
    if row is None:
        raise LookupError(f"{name} returned no row.")
    return row


def _entry(row: Row) -> tuple[Position, FeedEntry | None]:
    xid, seq, job_id, service, job_type, queue, tags, *event = row
    if job_id is None:
        return Position(xid, seq), None
    found = FeedEntry("", job_id, service, job_type, queue, decode_tags(tags), event_from(event))
    return Position(xid, seq), found
