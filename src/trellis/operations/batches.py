"""Batches for operators: read them, seal them, cancel them; `jobs.batches` of `connect`.

Sealing and cancelling are audit entries. A batch is named by its id, or by the beginning or end of
it while that is unique.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

from trellis import control
from trellis.core.batches import BatchState
from trellis.declaration import checks
from trellis.engines.audit import By
from trellis.engines.batches import BatchFilter
from trellis.engines.port import Engine
from trellis.errors import AmbiguousId, no_such_batch
from trellis.insight import batches as insight
from trellis.insight.batches import BatchView, MemberView
from trellis.insight.graph import GRAPH_LIMIT, JobGraph, graph_of_batch
from trellis.operations.lookup import ID_LENGTH
from trellis.portal import iterated, synced

_PAGE: Final = 500
_ALL: Final = BatchFilter()


class Batches:
    """The batches of an engine."""

    def __init__(self, engine: Callable[[], Engine], actor: str) -> None:
        self._engine = engine
        self._actor = actor

    async def find(self, *, state: BatchState | None = None, limit: int = 50) -> list[BatchView]:
        """Return batches with their progress, the newest first."""
        wanted = None if state is None else checks.one_of(BatchState, "state", state)
        return await insight.list_views(self._engine(), wanted, limit)

    find_sync = synced(find)

    async def get(self, batch_id: str) -> BatchView:
        """Return one batch; raise `BatchNotFound`."""
        return await insight.load_view(self._engine(), await self._resolve(batch_id))

    get_sync = synced(get)

    async def members(self, batch_id: str) -> AsyncIterator[MemberView]:
        """Yield the members of a batch in creation order; secrets are masked."""
        whole = await self._resolve(batch_id)
        async with aclosing(insight.members_of(self._engine(), whole)) as members:
            async for member in members:
                yield member

    members_sync = iterated(members)

    async def graph(self, batch_id: str, limit: int = GRAPH_LIMIT) -> JobGraph:
        """Return a batch, the batches in it and their first members, at most this number."""
        return await graph_of_batch(self._engine(), await self._resolve(batch_id), limit)

    graph_sync = synced(graph)

    async def seal(self, batch_id: str, *, reason: str = "") -> BatchView:
        """Take no more members: the batch finishes once those it has have ended.

        For a batch whose creator died before the end of its block.
        """
        whole = await self._resolve(batch_id)
        await control.seal_batch(self._engine(), whole, By(self._actor, reason))
        return await insight.load_view(self._engine(), whole)

    seal_sync = synced(seal)

    async def cancel(self, batch_id: str, *, reason: str = "") -> BatchView:
        """Cancel the members that wait, ask those that run to stop, create no fan-in job."""
        whole = await self._resolve(batch_id)
        await control.cancel_batch(self._engine(), whole, By(self._actor, reason))
        return await insight.load_view(self._engine(), whole)

    cancel_sync = synced(cancel)

    async def retry_failed(self, batch_id: str, *, reason: str = "") -> int:
        """Run the members that failed or are dead again; return how many."""
        whole = await self._resolve(batch_id)
        return await control.retry_failed_members(self._engine(), whole, By(self._actor, reason))

    retry_failed_sync = synced(retry_failed)

    async def _resolve(self, written: str) -> str:
        text = checks.text("id", written, "01JC0000000000000000000000").strip().upper()
        if len(text) >= ID_LENGTH:
            return text
        found: list[str] = []
        after: int | None = None
        while text and (page := await self._engine().batches(_ALL, after=after, limit=_PAGE)):
            ids = [batch.new.id for batch in page]
            found += [each for each in ids if each.startswith(text) or each.endswith(text)]
            after = page[-1].row
        if not found:
            raise no_such_batch(written)
        if len(found) > 1:
            raise AmbiguousId(
                f"{written!r} is the beginning or the end of several ids of batches: "
                f"{', '.join(found[:5])}. Write more of it.",
                candidates=tuple(found[:5]),
            )
        return found[0]
