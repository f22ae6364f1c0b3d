"""A running write transaction as verbs use it: statements by name, one clock reading, hints.

`now` is read once, after the write lock was taken, so times in the journal follow commit order.

The journal has one insert per shape of event. The sqlite3 module spends longer on binding a NULL
(or an enum) than on a plain value, so events without data or fence have statements that do not name
those columns, and words are bound as `str`.
"""

from __future__ import annotations

import json
import operator
import re
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, Protocol, TypeAlias

from trellis import failpoints
from trellis.core.durations import Micros
from trellis.core.events import Event
from trellis.engines.clock import Clock
from trellis.engines.sql.key_rates import Waiter, may_hand_over
from trellis.engines.sql.rows import Row, encode_data
from trellis.engines.sql.statements import load_sections, load_statements
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.registry import Registry
from trellis.engines.values import Topic

STATEMENTS = load_statements("trellis.engines.sqlite")
FRAGMENTS = load_sections("trellis.engines.sqlite").fragments

#: Rows by the name of the statement that inserts them.
Shaped: TypeAlias = dict[str, list[Row]]

#: Rows per statement when there are many: one call into SQLite instead of one per row, which also
#: lets other threads run. Few sizes, so that few statements are prepared.
_CHUNKS: Final = (100, 10)
#: The same where a statement can be filled up with rows that change nothing.
_SIZES: Final = (8, 16, 32, 64, 128, 256, 512)
_is_none: Final = partial(operator.is_, None)
_VALUES: Final = re.compile(r"values (\([?, 0-9]+\))")


@lru_cache(maxsize=256)
def _widen(name: str, size: int, nulls: tuple[bool, ...] = ()) -> str:
    """Return the statement with its row of values repeated, and NULL where `nulls` has True."""

    def widen(match: re.Match[str]) -> str:
        marks = iter(nulls)
        row = re.sub(r"\?", lambda _: "null" if next(marks, False) else "?", match[1])
        return "values " + ", ".join([row] * size)

    return _VALUES.sub(widen, STATEMENTS[name])


class Connection(Protocol):
    """What runs a statement: a connection of the engine, or the caller's."""

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:  # noqa: ANN401
        """Run one statement."""


class Transaction:
    """One write transaction."""

    __slots__ = ("_connection", "boot_id", "lease_now", "now", "registry", "topics")

    def __init__(self, connection: Connection, clock: Clock, registry: Registry) -> None:
        self._connection = connection
        self.registry = registry
        self.now = clock.now()
        self.lease_now = clock.lease_now()
        self.boot_id = clock.boot_id()
        #: The hints to publish once this is committed.
        self.topics: set[Topic] = set()

    @property
    def shared(self) -> SharedTransaction:
        """This transaction as the verbs of `engines.sql` see it."""
        return SharedTransaction(self)

    def run(self, name: str, *values: Any) -> int:  # noqa: ANN401 - any value SQLite can bind
        """Execute a statement; return how many rows it changed."""
        failpoints.reach("sqlite.statement")
        return self._connection.execute(STATEMENTS[name], values).rowcount

    def run_sparse(self, name: str, rows: Sequence[Row]) -> int:
        """Execute a statement with `values (...)` for rows that are mostly empty.

        The sqlite3 module takes longer to bind a NULL than SQLite takes to store it, so rows with
        the same gaps go together, into a statement that has NULL written there.
        """
        if len(rows) == 1:
            return self.run(name, *rows[0])
        groups: dict[tuple[bool, ...], list[Row]] = {}
        for row in rows:
            gaps = tuple(map(_is_none, row))
            groups.setdefault(gaps, []).append([value for value in row if value is not None])
        return sum(self._run_wide(name, group, (), gaps) for gaps, group in groups.items())

    def run_many(self, name: str, rows: Sequence[Row], *head: Any) -> int:  # noqa: ANN401
        """Execute a statement with `values (...)` for many rows; return how many rows it changed.

        `head` is bound to what stands before the values.
        """
        return self._run_wide(name, rows, head, ())

    def run_joined(
        self,
        name: str,
        values: list[Any],
        *head: Any,  # noqa: ANN401
        nulls: tuple[bool, ...] = (),
    ) -> int:
        """Execute a statement that joins `values (...)` with a table by number, for many rows.

        The rows come as one list of values. A call takes as few statements as possible: the last
        one is filled up with rows of zeros, which are the number of no job.
        """
        width = STATEMENTS[name].count("?") - len(head) - sum(nulls)
        changed = done = 0
        while done < len(values):
            left = (len(values) - done) // width
            size = next((each for each in _SIZES if each >= left), _SIZES[-1])
            part = values[done : done + size * width]
            done += len(part)
            part += [0] * (size * width - len(part))
            failpoints.reach("sqlite.statement")
            changed += self._connection.execute(_widen(name, size, nulls), (*head, *part)).rowcount
        return changed

    def _run_wide(self, name: str, rows: Sequence[Row], head: Row, nulls: tuple[bool, ...]) -> int:
        if len(rows) == 1 and not nulls:
            return self.run(name, *head, *rows[0])
        changed = done = 0
        for size in (*_CHUNKS, 1):
            while len(rows) - done >= size:
                failpoints.reach("sqlite.statement")
                values = (*head, *chain.from_iterable(rows[done : done + size]))
                changed += self._connection.execute(_widen(name, size, nulls), values).rowcount
                done += size
        return changed

    def insert(self, name: str, *values: Any) -> int:  # noqa: ANN401 - any value SQLite can bind
        """Execute an insert; return the new row's number."""
        failpoints.reach("sqlite.statement")
        return self._connection.execute(STATEMENTS[name], values).lastrowid or 0

    def one(self, name: str, *values: Any) -> Row | None:  # noqa: ANN401
        """Return the first row of a query."""
        row: Row | None = self._connection.execute(STATEMENTS[name], values).fetchone()
        return row

    def rows(self, name: str, *values: Any) -> list[Row]:  # noqa: ANN401
        """Return all rows of a query."""
        return self._connection.execute(STATEMENTS[name], values).fetchall()

    def stream(self, name: str, *values: Any) -> Iterable[Row]:  # noqa: ANN401
        """Return rows of a query as they are asked for."""
        return self._connection.execute(STATEMENTS[name], values)

    def savepoint(self) -> None:
        """Mark a point to which a failed part can be undone."""
        self._connection.execute(STATEMENTS["part_savepoint"])

    def release(self) -> None:
        """Keep what was done since the savepoint."""
        self._connection.execute(STATEMENTS["part_release"])

    def undo(self) -> None:
        """Undo what was done since the savepoint."""
        self._connection.execute(STATEMENTS["part_undo"])
        self._connection.execute(STATEMENTS["part_release"])
        self.registry.forget()


def shape(job: int, event: Event) -> tuple[str, Row]:
    """Return the statement for an event like this one, and its row."""
    fence, data = event.fence, event.data
    row = (job, event.version, event.kind._value_, event.state._value_, event.at, event.attempt)
    if data is not None:
        return "event_full", (*row, *(fence or (None, None)), encode_data(data))
    if fence is not None:
        return "event_fenced", (*row, *fence)
    return "event", row


def shape_many(events: Iterable[tuple[int, Event]]) -> Shaped:
    """Make the rows of many events, by statement."""
    shaped: Shaped = {}
    for job, event in events:
        name, row = shape(job, event)
        shaped.setdefault(name, []).append(row)
    return shaped


def journal(tx: Transaction, job: int, event: Event) -> None:
    """Append one event to a job's journal."""
    name, row = shape(job, event)
    tx.run(name, *row)


def journal_many(tx: Transaction, shaped: Shaped) -> None:
    """Append events of many jobs; one event per job, so their order does not matter."""
    for name, rows in shaped.items():
        tx.run_many(name, rows)


class SharedTransaction:
    """A transaction as the verbs of `engines.sql` see it: coroutines that never wait."""

    __slots__ = ("_tx", "now", "topics")
    #: The caller's transaction is like the engine's: it has the file for itself.
    is_callers = False

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.now = tx.now
        self.topics = tx.topics

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401
        """Run a statement; return its rows."""
        return self._tx.rows(name, *values)

    async def one(self, name: str, *values: Any) -> Row | None:  # noqa: ANN401
        """Run a statement; return its first row."""
        return self._tx.one(name, *values)

    async def value(self, name: str, *values: Any) -> Any:  # noqa: ANN401
        """Run a statement; return the first value of its first row."""
        row = self._tx.one(name, *values)
        return row[0] if row else None

    async def run(self, name: str, *values: Any) -> None:  # noqa: ANN401
        """Run a statement that returns nothing."""
        self._tx.run(name, *values)

    async def run_many(self, name: str, rows: Sequence[Row]) -> None:
        """Run a statement with `values (...)` for many rows."""
        self._tx.run_many(name, rows)

    async def changed(self, name: str, *values: Any) -> int:  # noqa: ANN401
        """Run a statement that changes rows; return how many."""
        return self._tx.run(name, *values)

    async def lock(self, name: str, *values: Any) -> None:  # noqa: ANN401
        """Do nothing: this transaction has the file for itself."""

    async def read_clock(self) -> None:
        """Do nothing: the clock was read when the transaction had begun."""

    @property
    def lease_clock(self) -> tuple[object, ...]:
        """The boot, and the time since then."""
        return self._tx.boot_id, self._tx.lease_now

    def lease_until(self, lease: Micros) -> tuple[object, ...]:
        """Return the columns for the end of a lease that begins now."""
        return self._tx.lease_now + lease, self._tx.boot_id

    def array(self, values: Sequence[object]) -> str:
        """Return a list as JSON text."""
        return json.dumps(values) if values else "[]"

    async def hand_over(self, key_hashes: Sequence[str]) -> int:
        """Give free slots of these keys to their waiting jobs; return how many."""
        return sum(_hand_over(self._tx, key_hash) for key_hash in key_hashes)


def _hand_over(tx: Transaction, key_hash: str) -> int:
    handed = 0
    while (row := tx.one("key_next", key_hash)) is not None:
        waiter = Waiter(*row)
        key = tx.registry.policy(tx, int(waiter.policy)).key
        held = tx.one("key_held", key_hash)
        if key is None or held is None or (not waiter.has_slot and held[0] >= key.active):
            break
        is_rated = key.rate is not None or waiter.declared is not None
        if is_rated and not run_through(may_hand_over(tx.shared, key_hash, waiter, key.limit)):
            break
        if not waiter.has_slot:
            tx.run("slot_take", key_hash, waiter.job)
        tx.run("key_availability", "ready", waiter.job)
        handed += 1
    return handed
