"""The audit on the SQL engines: entries are written by the verb that makes the change."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from trellis.core.audit import recorded
from trellis.core.durations import Instant, Micros
from trellis.core.events import JsonValue
from trellis.core.lifecycle import Transition
from trellis.engines.audit import AuditEntry, AuditFilter, By, Change, storable
from trellis.engines.sql.rows import Row
from trellis.engines.sql.transaction import Transaction

#: Above the number of every entry.
_LAST: Final = 2**62


async def record(tx: Transaction, change: Change, by: By) -> None:
    """Store a change in the transaction that makes it."""
    await record_all(tx, [change], by)


async def record_all(tx: Transaction, changes: Iterable[Change], by: By) -> None:
    """Store changes that one operator makes together."""
    await tx.run_many("audit_add", [row_of(tx.now, change, by) for change in changes])


async def record_decisions(tx: Transaction, transitions: Iterable[Transition]) -> None:
    """Store what operators decided about jobs, once the decisions themselves are stored."""
    rows = [
        row_of(transition.event.at, *found)
        for transition in transitions
        if (found := recorded(transition)) is not None
    ]
    await tx.run_many("audit_add", rows)


def row_of(at: Instant, change: Change, by: By) -> Row:
    """Return the columns of an entry."""
    action, target, before, after = change
    actor, target, reason = map(storable, (by.actor, target, by.reason))
    return at, actor, action, target, _text(before), _text(after), reason


async def has_older(tx: Transaction, keep: Micros) -> bool:
    """Return whether there are entries that are older than this."""
    await tx.read_clock()
    return await tx.one("audit_prune_peek", tx.now - keep) is not None


async def prune(tx: Transaction, keep: Micros, limit: int) -> int:
    """Remove the oldest entries that are older than this; return how many."""
    await tx.read_clock()
    return await tx.changed("audit_prune", tx.now - keep, limit)


async def entries(
    tx: Transaction, where: AuditFilter, after: int | None, limit: int
) -> list[AuditEntry]:
    """Return the latest entries, or those before the one with the number `after`."""
    rows = await tx.rows("audit_list", *where, _LAST if after is None else after, limit)
    return [
        AuditEntry(number, at, Change(action, target, _value(old), _value(new)), By(actor, reason))
        for number, at, actor, action, target, old, new, reason in rows
    ]


def _text(value: JsonValue) -> str | None:
    return None if value is None else json.dumps(value)


def _value(text: str | None) -> JsonValue:
    value: JsonValue = None if text is None else json.loads(text)
    return value
