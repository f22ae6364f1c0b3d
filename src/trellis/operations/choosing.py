"""Where the jobs of a selection come from: a filter, or a list of ids; always batch by batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from trellis.core.durations import Instant
from trellis.core.job import JobId, JobRecord
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, Page

BATCH: Final = 200


class Batch(NamedTuple):
    """Some jobs as they were at this moment; None for an id that is not there."""

    now: Instant
    jobs: tuple[tuple[JobId, JobRecord | None], ...]


class Source(Protocol):
    """A choice of jobs."""

    def batches(self, engine: Engine) -> AsyncIterator[Batch]:
        """Go through all of them."""

    async def count(self, engine: Engine) -> int:
        """Return how many there are."""

    def among(self, states: frozenset[State]) -> Source:
        """Return the choice of those in one of these states, unless states were chosen already."""


class Matching:
    """Everything that fits a filter, newest first; jobs that come meanwhile are not seen."""

    def __init__(self, filter_at: Callable[[Instant], JobFilter]) -> None:
        self._filter_at = filter_at
        self._where: JobFilter | None = None

    async def where(self, engine: Engine) -> JobFilter:
        """Return the filter; moments such as "an hour ago" are fixed once."""
        if self._where is None:
            self._where = self._filter_at(await engine.now())
        return self._where

    async def page(self, engine: Engine, after: int | None, limit: int) -> Page:
        """Return a page."""
        return await engine.find(await self.where(engine), after=after, limit=limit)

    async def batches(self, engine: Engine) -> AsyncIterator[Batch]:
        """Go through all of them."""
        after: int | None = None
        while True:
            page = await self.page(engine, after, BATCH)
            yield Batch(page.as_of, tuple((job.definition.id, job) for job in page.jobs))
            after = page.next_after
            if after is None:
                return

    async def count(self, engine: Engine) -> int:
        """Return how many fit."""
        return sum((await engine.count(await self.where(engine), "state")).groups.values())

    def among(self, states: frozenset[State]) -> Matching:
        """Return the choice of those in one of these states, unless states were chosen already."""

        def narrowed(now: Instant) -> JobFilter:
            where = self._where or self._filter_at(now)
            return where if where.states else where._replace(states=tuple(sorted(states)))

        return Matching(narrowed)


class Named:
    """Jobs by their ids, in the order given."""

    def __init__(self, ids: Sequence[JobId]) -> None:
        self._ids = tuple(dict.fromkeys(ids))

    async def batches(self, engine: Engine) -> AsyncIterator[Batch]:
        """Go through all of them."""
        for start in range(0, len(self._ids), BATCH):
            ids = self._ids[start : start + BATCH]
            loaded = await engine.load(ids)
            yield Batch(loaded.now, tuple(zip(ids, loaded.records, strict=True)))

    async def count(self, engine: Engine) -> int:  # noqa: ARG002 - as every source
        """Return how many were named."""
        return len(self._ids)

    def among(self, states: frozenset[State]) -> Named:  # noqa: ARG002 - as every source
        """Return the same: whoever names a job wants to hear why it cannot be."""
        return self
