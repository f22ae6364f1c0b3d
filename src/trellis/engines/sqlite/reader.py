"""The connection for reads: separate from the writer's, used by one thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from trellis.core.job import mentions
from trellis.engines.clock import Clock
from trellis.engines.sql.filters import Filters
from trellis.engines.sql.rows import Row, decode_failure
from trellis.engines.sqlite.registry import Registry
from trellis.engines.sqlite.transaction import FRAGMENTS, SharedTransaction, Transaction

FILTERS: Final = Filters(FRAGMENTS, as_list=json.dumps)


class Reader:
    """A connection that only reads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        #: For questions about the connection itself.
        self.connection = connection
        connection.create_function("trellis_mentions", 2, _mentions, deterministic=True)

    def queries(self, clock: Clock) -> Queries:
        """Return what one read runs on."""
        return Queries(Transaction(self.connection, clock, Registry()), self.connection, clock)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class Queries(SharedTransaction):
    """One read, as the verbs of `engines.sql.reads` see it."""

    __slots__ = ("_clock", "_connection", "filters")

    def __init__(self, tx: Transaction, connection: sqlite3.Connection, clock: Clock) -> None:
        super().__init__(tx)
        self._connection = connection
        self._clock = clock
        self.filters = FILTERS

    async def read_clock(self) -> None:
        """Fix `now`: other processes write while this one reads."""
        self.now = self._clock.now()

    async def query(self, text: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401
        """Run a statement by its text; return its rows."""
        return self._connection.execute(text, values).fetchall()


def _mentions(error: str | None, text: str) -> bool:
    return mentions(decode_failure(error), text)
