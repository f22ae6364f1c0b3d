"""What is done to servers while workers work: killed, stopped at once, their connections cut.

Each deed waits until handlers are in flight. A server that goes is away for as long as the plan
says, be that longer than the lease, and counts as back when it takes connections again; a cluster
when all its nodes work together again. A worker with a way of its own finds the server a little
later than the others: nobody may give it up meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tests.harness.faults.diary import Diary
from tests.harness.faults.plan import ServerDeed
from tests.harness.faults.stores.store import Store
from tests.harness.faults.waiting import until
from tests.harness.servers.proxy import Proxy

_PATIENCE: Final = 60
#: By how much of a lease one worker comes back later; the others are patient for a whole one.
_LATER: Final = 0.25


class Siege:
    """The deeds to one store's server; `is_busy` tells whether handlers are in flight."""

    def __init__(
        self,
        store: Store,
        diary: Diary,
        is_busy: Callable[[], bool],
        lease: float,
        way: Proxy | None,
        *,
        calm: float = 1.0,
    ) -> None:
        self._calm = calm
        self._way = way
        self._store = store
        self._diary = diary
        self._is_busy = is_busy
        self._lease = lease

    async def lay(self, deed: ServerDeed) -> None:
        """Do one deed, and wait until it is over."""
        await asyncio.sleep(deed.pause * self._calm)
        await until(self._is_busy, "work in flight anywhere", _PATIENCE)
        if deed.kind == "cut":
            number = self._diary.begin("cut", "connections", [])
            self._store.take_away("cut")
            self._diary.over(number)
        else:
            await self._take_away(deed)

    async def _take_away(self, deed: ServerDeed) -> None:
        target = "longer than the lease" if deed.away > 1 else "for a while"
        number = self._diary.begin(deed.kind, target, [])
        if self._way is not None:
            self._way.refuse()
        try:
            await asyncio.to_thread(self._store.take_away, deed.kind)
            await asyncio.sleep(deed.away * self._lease)
        finally:
            await asyncio.to_thread(self._store.bring_back)
        self._diary.over(number)
        if self._way is not None:
            await asyncio.sleep(_LATER * self._lease)
            self._way.accept()
