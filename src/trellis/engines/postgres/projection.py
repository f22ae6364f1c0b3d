"""A PostgreSQL database as a projection of another store, shared by any number of processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.core.policy import Policy
from trellis.engines.contracts import DeclaredType
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.projection import (
    KnownJob,
    PastRetention,
    Place,
    Presence,
    Projected,
    ProjectedEvent,
)
from trellis.engines.sql import maintenance, projection, reads
from trellis.engines.sql.rows import Lane, lane_of
from trellis.engines.values import DueJob
from trellis.errors import ConfigurationError

T = TypeVar("T")
_FILE: Final = "projection"


class Within(Protocol):
    """Runs a verb in a transaction; most of its statements are in this file."""

    def __call__(self, verb: Callable[[Transaction], Awaitable[T]], name: str, /) -> Awaitable[T]:
        """Run it."""


class _Numbers:
    """Numbers that were entered before the transaction."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def lane(self, lane: Lane) -> int:
        return self._registry.lane_numbers[lane]

    def policy(self, policy: Policy) -> int:
        return self._registry.policy_numbers[policy]


class PostgresProjection:
    """The write side of a projection in one database."""

    def __init__(
        self, within: Within, read: projection.Read, link: ServerConnection, registry: Registry
    ) -> None:
        self._within, self._read, self._link, self._registry = within, read, link, registry

    async def prepare(self, streams: Sequence[str]) -> None:
        """Refuse a database that has jobs of its own, or of other streams.

        The views are part of the schema.
        """
        if await self._link.value("projection_own_jobs"):
            raise ConfigurationError(projection.OWN_JOBS)
        projection.refuse_other(await self._link.value("projection_other_stream", list(streams)))

    async def place(self, stream: str) -> Place | None:
        """Return how much of a stream is stored here."""
        return await self._within(lambda tx: projection.place(tx, stream), _FILE)

    async def project(
        self, stream: str, before: Place, after: Place, changes: Sequence[Projected]
    ) -> bool:
        """Store the changes between two places, if the first is the present one."""
        events = [each for each in changes if isinstance(each, ProjectedEvent)]
        types = [each for each in changes if isinstance(each, DeclaredType)]
        lanes = {lane_of(each.record.definition) for each in events}
        policies = {each.policy for each in events} | {each.policy for each in types}
        policies |= {each.record.definition.policy for each in events if each.record.head.claims}
        await self._registry.enter_lanes(self._link, lanes)
        await self._registry.enter_policies(self._link, policies)
        numbers, places = _Numbers(self._registry), (before, after)
        return await self._within(
            lambda tx: projection.project(tx, numbers, stream, places, changes), _FILE
        )

    async def erase(self, stream: str | None = None, at: Place | None = None) -> bool:
        """Remove everything that was projected."""
        return await self._within(lambda tx: projection.erase(tx, stream, at), _FILE)

    async def due(self, now: Instant, limit: int) -> list[DueJob]:
        """Return the jobs that maintenance must look at."""
        return await self._within(lambda tx: maintenance.due_jobs(tx, now, limit), "maintenance")

    async def promote(self, now: Instant, limit: int) -> int:
        """Count jobs whose time has come as claimable."""
        await self._registry.read_lanes(self._link)
        lanes = list(self._registry.lanes)
        return await self._within(lambda tx: projection.promote(tx, lanes, now, limit), _FILE)

    async def known(self, ids: Sequence[JobId]) -> list[KnownJob]:
        """Return those of these jobs that are here."""
        return await self._read(lambda tx: reads.known(tx, ids))

    async def past_retention(self, now: Instant, limit: int) -> list[PastRetention]:
        """Return jobs that retention no longer keeps."""
        return await self._within(lambda tx: projection.past_retention(tx, now, limit), _FILE)

    async def presences(self, since: Instant) -> list[Presence]:
        """Return the worker processes that were heard of since then."""
        return await self._within(lambda tx: projection.presences(tx, since), _FILE)
