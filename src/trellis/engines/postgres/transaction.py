"""What a verb sees of a running transaction: statements by name, one clock reading, hints.

It runs on a connection of ours, or on a caller's own (`guests.py`): whatever can fetch rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from trellis.core.spans import Instant
from trellis.engines.postgres.books import Books
from trellis.engines.postgres.statements import statements
from trellis.engines.sql.rows import Row
from trellis.engines.values import Topic


class Wire(Protocol):
    """What runs a statement: a connection of ours, or a guest's."""

    @property
    def fetch(self) -> Callable[..., Awaitable[Sequence[Row]]]:
        """Run one statement with its values; return its rows."""


class Transaction:
    """One transaction under way."""

    __slots__ = ("_sql", "_wire", "books", "now", "topics")

    def __init__(self, wire: Wire, schema: str, books: Books) -> None:
        self._wire = wire
        self._sql = statements(schema)
        self.books = books
        self.now: Instant = 0
        #: What to tell others once this is committed.
        self.topics: set[Topic] = set()

    async def read_clock(self) -> None:
        """Fix the moment of this transaction, by the server's clock."""
        self.now = await self.value("clock")

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:  # noqa: ANN401
        """Run a statement; return its rows."""
        return await self._wire.fetch(self._sql[name], *values)

    async def one(self, name: str, *values: Any) -> Row | None:  # noqa: ANN401
        """Return the first row of a statement."""
        found = await self.rows(name, *values)
        return found[0] if found else None

    async def value(self, name: str, *values: Any) -> Any:  # noqa: ANN401
        """Return the first value of a statement."""
        found = await self.rows(name, *values)
        return found[0][0] if found else None
