"""What a verb sees of a running transaction: statements by name, one clock reading, hints.

It runs on a connection of the engine, or on the caller's (`guests.py`). On a `Link` each statement
is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from trellis.core.durations import Instant, Micros
from trellis.engines.postgres.registry import Books
from trellis.engines.sql.rows import Row
from trellis.engines.values import Topic


class Wire(Protocol):
    """What runs a statement: a connection of the engine, or the caller's."""

    @property
    def rows(self) -> Callable[..., Awaitable[Sequence[Row]]]:
        """Run a statement by name with its values; return its rows."""


class Transaction:
    """One transaction under way."""

    __slots__ = ("books", "now", "rows", "topics")

    def __init__(self, wire: Wire, books: Books) -> None:
        #: Runs a statement; returns its rows.
        self.rows = wire.rows
        self.books = books
        self.now: Instant = 0
        #: What to tell others once this is committed.
        self.topics: set[Topic] = set()

    async def read_clock(self) -> None:
        """Fix the moment of this transaction, by the server's clock."""
        self.now = await self.value("clock")

    async def run(self, name: str, *values: Any) -> None:  # noqa: ANN401
        """Run a statement that returns nothing."""
        await self.rows(name, *values)

    async def changed(self, name: str, *values: Any) -> int:  # noqa: ANN401
        """Run a statement that ends in `returning`; return how many rows it changed."""
        return len(await self.rows(name, *values))

    async def lock(self, name: str, *values: Any) -> None:  # noqa: ANN401
        """Run a statement that takes locks until the transaction ends."""
        await self.rows(name, *values)

    @property
    def lease_clock(self) -> tuple[object, ...]:
        """The moment of this transaction; null, which is now, before it is fixed."""
        return (self.now or None,)

    def lease_until(self, lease: Micros) -> tuple[object, ...]:
        """Return the column for the end of a lease that begins now."""
        return (self.now + lease,)

    def array(self, values: Sequence[object]) -> list[object]:
        """Return a list as an array."""
        return list(values)

    async def one(self, name: str, *values: Any) -> Row | None:  # noqa: ANN401
        """Return the first row of a statement."""
        found = await self.rows(name, *values)
        return found[0] if found else None

    async def value(self, name: str, *values: Any) -> Any:  # noqa: ANN401
        """Return the first value of a statement."""
        found = await self.rows(name, *values)
        return found[0][0] if found else None
