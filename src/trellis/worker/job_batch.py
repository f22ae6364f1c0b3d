"""The batch of a running job: its members with their results, and how far it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from trellis.declaration.job_type import Reach
from trellis.insight.batches import (
    BatchProgress,
    MemberView,
    load_status,
    members_of,
    progress_of,
)
from trellis.portal import iterated, synced


class JobBatch:
    """The batch that a job belongs to, or that it follows."""

    __slots__ = ("_reach", "id")

    def __init__(self, batch_id: str, reach: Reach) -> None:
        self.id = batch_id
        self._reach = reach

    def __repr__(self) -> str:
        return f"<batch {self.id}>"

    async def members(self) -> AsyncIterator[MemberView]:
        """Yield the members in creation order, with results and errors; read page by page."""
        engine = await self._reach()
        async with aclosing(members_of(engine, self.id, shows_secrets=True)) as members:
            async for member in members:
                yield member

    members_sync = iterated(members)

    async def counts(self) -> BatchProgress:
        """Return how many members there are in each state."""
        return progress_of(await load_status(await self._reach(), self.id))

    counts_sync = synced(counts)
