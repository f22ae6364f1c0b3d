"""A running transaction as verbs use it: statements by name, one reading of the clock, hints.

It runs on a connection of the engine, or on the caller's (`caller_transaction.py`). On a
`ServerConnection`
each statement is a separate transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trellis.core.durations import Instant, Micros
from trellis.core.policy import decode_policy
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.registry import Registry, StatementRunner
from trellis.engines.sql.filters import Filters
from trellis.engines.sql.key_rates import Waiter, may_hand_over
from trellis.engines.sql.rows import Row
from trellis.engines.values import Topic


class Transaction:
    """One transaction."""

    __slots__ = ("is_callers", "now", "registry", "rows", "topics")

    def __init__(
        self, connection: StatementRunner, registry: Registry, *, is_callers: bool = False
    ) -> None:
        #: Runs a statement; returns its rows.
        self.rows = connection.rows
        self.registry = registry
        #: Whether the application began it and will end it.
        self.is_callers = is_callers
        self.now: Instant = 0
        #: The hints to publish once this is committed.
        self.topics: set[Topic] = set()

    async def read_clock(self) -> None:
        """Fix the moment of this transaction, by the server's clock."""
        self.now = await self.value("clock")

    async def run(self, name: str, *values: Any) -> None:  # noqa: ANN401
        """Run a statement that returns nothing."""
        await self.rows(name, *values)

    async def run_many(self, name: str, rows: Sequence[Row]) -> None:
        """Run a statement that takes an array for each column."""
        if rows:
            await self.rows(name, *(list(column) for column in zip(*rows, strict=True)))

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

    async def hand_over(self, key_hashes: Sequence[str]) -> int:
        """Give free slots of these keys to their waiting jobs; return how many."""
        ((handed, rated),) = await self.rows("key_hand_over", key_hashes)
        for key_hash in sorted(rated or ()):
            handed += await self._hand_over_rated(key_hash)
        return int(handed)

    async def _hand_over_rated(self, key_hash: str) -> int:
        """Give free slots of a key to its jobs one by one, while its rate has tokens."""
        handed = 0
        while (row := await self.one("key_next", key_hash)) is not None:
            waiter = Waiter(*row)
            key = decode_policy(str(waiter.policy)).key
            if key is None:
                break
            if not waiter.has_slot and await self.value("key_held", key_hash) >= key.active:
                break
            if not await may_hand_over(self, key_hash, waiter, key.limit):
                break
            if not waiter.has_slot:
                await self.run("slot_take", key_hash, waiter.job)
            await self.run("key_availability", "ready", waiter.job)
            handed += 1
        return handed


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
