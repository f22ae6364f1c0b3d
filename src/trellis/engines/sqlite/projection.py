"""A SQLite file as a projection of another store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from trellis.core.durations import Instant
from trellis.core.policy import Policy
from trellis.engines.projection import Presence, Projected
from trellis.engines.sql import projection
from trellis.engines.sql.rows import Lane
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.transaction import Transaction

T = TypeVar("T")
_VIEWS: Final = (
    "projection_view_metadata",
    "projection_view_jobs",
    "projection_view_presence",
)


class Write(Protocol):
    """Runs a verb on the writer thread."""

    def __call__(self, verb: Callable[[Transaction], T], /) -> Awaitable[T]:
        """Run it."""


class _Numbers:
    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    def lane(self, lane: Lane) -> int:
        return self._tx.registry.lane_number(self._tx, lane)

    def policy(self, policy: Policy) -> int:
        return self._tx.registry.policy_number(self._tx, policy)


class SqliteProjection:
    """The write side of a projection in one file."""

    def __init__(self, write: Write) -> None:
        self._write: Any = write

    async def place(self, stream: str) -> int:
        """Return the sequence of the last message that is stored here; add the views."""

        def look(tx: Transaction) -> int:
            for name in _VIEWS:
                tx.run(name)
            return run_through(projection.place(tx.shared, stream))

        found: int = await self._write(look)
        return found

    async def project(
        self, stream: str, before: int, after: int, changes: Sequence[Projected]
    ) -> bool:
        """Store the changes between two places, if the first is the present one."""

        def store(tx: Transaction) -> bool:
            places = (before, after)
            return run_through(projection.project(tx.shared, _Numbers(tx), stream, places, changes))

        is_stored: bool = await self._write(store)
        return is_stored

    async def erase(self) -> None:
        """Remove everything that was projected."""
        await self._write(lambda tx: run_through(projection.erase(tx.shared)))

    async def presences(self, since: Instant) -> list[Presence]:
        """Return the worker processes that were heard of since then."""
        found: list[Presence] = await self._write(
            lambda tx: run_through(projection.presences(tx.shared, since))
        )
        return found
