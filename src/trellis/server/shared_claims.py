"""Claims of remote workers: those that wait for the same jobs share the answer that there are none.

An engine claims for one worker after the other. A server claims for hundreds, and after a hint most
of them ask for the same job. A claim that finds nothing answers all claims for the same types that
arrived before it began: each of them would have found nothing right after it. A claim never uses an
answer that is older than itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from trellis.core.job import SessionId
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import Claimed

#: Service, types and queues of all demands.
_Wanted: TypeAlias = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]


class _Turn:
    """The claims for the same types: one is under way, the others wait."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting: set[asyncio.Future[Claimed]] = set()


class SharedClaims:
    """Claims for the workers of one server process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turns: dict[_Wanted, _Turn] = {}

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim jobs, or share the answer of a later claim that there are none."""
        wanted = tuple((each.service, each.types, each.queues) for each in demands)
        turn = self._turns.setdefault(wanted, _Turn())
        answer: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()
        turn.waiting.add(answer)
        try:
            async with turn.lock:
                if answer.done():
                    return answer.result()
                turn.waiting.remove(answer)
                earlier = [*turn.waiting]
                claimed = await self._engine.claim(session, demands, limit)
        finally:
            turn.waiting.discard(answer)
            if not turn.waiting and not turn.lock.locked():
                self._turns.pop(wanted, None)
        if not claimed.jobs and _takes_any(demands, limit):
            for each in earlier:
                if not each.done():
                    each.set_result(claimed)
        return claimed


def _takes_any(demands: Sequence[Demand], limit: int) -> bool:
    """Return whether a claim would have taken any job of its types, also one behind a limit."""
    return limit > 0 and all(each.limit > 0 and each.free != 0 for each in demands)
