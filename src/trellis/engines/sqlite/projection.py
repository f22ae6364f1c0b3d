"""A SQLite file as a projection of another store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.core.policy import Policy
from trellis.engines.projection import KnownJob, PastRetention, Place, Presence, Projected
from trellis.engines.sql import maintenance, projection, reads
from trellis.engines.sql.rows import Lane
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import DueJob
from trellis.errors import ConfigurationError

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

    def __init__(self, write: Write, read: projection.Read) -> None:
        self._write: Any = write
        self._read = read

    async def prepare(self, streams: Sequence[str]) -> None:
        """Add the views; refuse a file that has jobs of its own, or of other streams."""

        def add(tx: Transaction) -> tuple[bool, str | None]:
            for name in _VIEWS:
                tx.run(name)
            other = tx.one("projection_other_stream", json.dumps(streams))
            return tx.one("projection_own_jobs") is not None, None if other is None else other[0]

        has_own, other = await self._write(add)
        if has_own:
            raise ConfigurationError(projection.OWN_JOBS)
        projection.refuse_other(other)

    async def place(self, stream: str) -> Place | None:
        """Return how much of a stream is stored here."""
        found: Place | None = await self._write(
            lambda tx: run_through(projection.place(tx.shared, stream))
        )
        return found

    async def project(
        self, stream: str, before: Place, after: Place, changes: Sequence[Projected]
    ) -> bool:
        """Store the changes between two places, if the first is the present one."""

        def store(tx: Transaction) -> bool:
            places = (before, after)
            return run_through(projection.project(tx.shared, _Numbers(tx), stream, places, changes))

        is_stored: bool = await self._write(store)
        return is_stored

    async def erase(self, stream: str | None = None, at: Place | None = None) -> bool:
        """Remove everything that was projected."""
        is_erased: bool = await self._write(
            lambda tx: run_through(projection.erase(tx.shared, stream, at))
        )
        return is_erased

    async def due(self, now: Instant, limit: int) -> list[DueJob]:
        """Return the jobs that maintenance must look at."""
        found: list[DueJob] = await self._write(
            lambda tx: run_through(maintenance.due_jobs(tx.shared, now, limit))
        )
        return found

    async def promote(self, now: Instant, limit: int) -> int:
        """Count jobs whose time has come as claimable."""

        def move(tx: Transaction) -> int:
            tx.registry.refresh_lanes(tx)
            return run_through(projection.promote(tx.shared, tx.registry.lanes, now, limit))

        moved: int = await self._write(move)
        return moved

    async def known(self, ids: Sequence[JobId]) -> list[KnownJob]:
        """Return those of these jobs that are here."""
        return await self._read(lambda tx: reads.known(tx, ids))

    async def past_retention(self, now: Instant, limit: int) -> list[PastRetention]:
        """Return jobs that retention no longer keeps."""
        found: list[PastRetention] = await self._write(
            lambda tx: run_through(projection.past_retention(tx.shared, now, limit))
        )
        return found

    async def presences(self, since: Instant) -> list[Presence]:
        """Return the worker processes that were heard of since then."""
        found: list[Presence] = await self._write(
            lambda tx: run_through(projection.presences(tx.shared, since))
        )
        return found
