"""Writing the journal: one insert per shape of event.

The sqlite3 module spends longer on binding a NULL (or an enum) than on a plain value, so events
without data or fence have statements that do not name those columns, and words are bound as `str`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from trellis.core.events import Event
from trellis.engines.sql.rows import Row, encode_data
from trellis.engines.sqlite.transaction import Transaction

#: Rows by the name of the statement that inserts them.
Shaped: TypeAlias = dict[str, list[Row]]


def journal(tx: Transaction, job: int, event: Event) -> None:
    """Append one event to a job's journal."""
    name, row = shape(job, event)
    tx.run(name, *row)


def shape_many(events: Iterable[tuple[int, Event]]) -> Shaped:
    """Make the rows of many events, by statement."""
    shaped: Shaped = {}
    for job, event in events:
        name, row = shape(job, event)
        shaped.setdefault(name, []).append(row)
    return shaped


def journal_many(tx: Transaction, shaped: Shaped) -> None:
    """Append events of many jobs; one event per job, so their order does not matter."""
    for name, rows in shaped.items():
        tx.run_many(name, rows)


def shape(job: int, event: Event) -> tuple[str, Row]:
    """Return the statement for an event like this one, and its row."""
    fence, data = event.fence, event.data
    row = (job, event.version, event.kind._value_, event.state._value_, event.at, event.attempt)
    if data is not None:
        return "event_full", (*row, *(fence or (None, None)), encode_data(data))
    if fence is not None:
        return "event_fenced", (*row, *fence)
    return "event", row
