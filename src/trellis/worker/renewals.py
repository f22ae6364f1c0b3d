"""Acting on what the engine says about our claims: cancels to pass on, attempts we lost, strays.

A handler is stopped only by the engine's word, never by a silence. A claim the engine knows and we
do not is a lost reply: it is handed back once no claim of ours can still bring it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from trellis.core.commands import Release
from trellis.core.job import Fence, JobRecord, SessionId
from trellis.core.spans import Micros
from trellis.engines.values import Renewed, SessionLost
from trellis.errors import EngineError
from trellis.worker.attempt import Attempt, Stop
from trellis.worker.cancels import CancelWatch
from trellis.worker.engine_time import EngineTime
from trellis.worker.executor import Executor
from trellis.worker.fetcher import Fetcher
from trellis.worker.planner import Planner
from trellis.worker.roster import Roster
from trellis.worker.sessions import SessionHolder
from trellis.worker.settler import Settler
from trellis.worker.uptime import uptime

_logger = logging.getLogger(__name__)


class Renewals:
    """Hears every answer to a renewal, on the worker's loop."""

    def __init__(
        self,
        *,
        session: SessionHolder,
        roster: Roster,
        executor: Executor,
        fetcher: Fetcher,
        planner: Planner,
        settler: Settler,
        engine_time: EngineTime,
        cancels: CancelWatch,
        on_drain: Callable[[], None],
    ) -> None:
        self._session = session
        self._roster = roster
        self._executor = executor
        self._fetcher = fetcher
        self._planner = planner
        self._settler = settler
        self._time = engine_time
        self._cancels = cancels
        self._on_drain = on_drain
        self._stopping: set[asyncio.Task[None]] = set()
        self._strays: dict[Fence, float] = {}
        self._reopening: asyncio.Task[None] | None = None
        self._closed = False

    def hear(self, session: SessionId, sent: Micros, answer: Renewed | SessionLost) -> None:
        """Act on an answer about this session."""
        self._time.learn(answer.now, sent)
        if self._closed or session != self._session.id:  # a late word about a session that is over
            return
        if isinstance(answer, SessionLost):
            self._lose_everything()
            return
        if answer.draining:
            self._on_drain()
        for fence in answer.asked:
            self._ask(self._roster.held.get(fence))
        if running := self._drop(answer.lost):
            stopping = asyncio.create_task(self._cancels.stop_lost(running), name="trellis-lost")
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
        self._hand_back_strays(answer.unknown)

    def close(self) -> None:
        """Open no further session."""
        self._closed = True
        if self._reopening is not None:
            self._reopening.cancel()

    @staticmethod
    def _ask(attempt: Attempt | None) -> None:
        if attempt is not None:
            attempt.asked = True

    def _drop(self, fences: Iterable[Fence]) -> list[Attempt]:
        """Forget lost attempts that have not begun; return those that run."""
        running: list[Attempt] = []
        for fence in fences:
            attempt = self._roster.held.get(fence)
            # A closed attempt is in the settler's hands: its own settlement may be what ended it.
            if attempt is None or attempt.closed:
                continue
            if attempt.running:
                running.append(attempt)
            else:
                self._executor.drop(attempt)
                self._roster.held.pop(fence, None)
                self._roster.has_stopped(attempt)
        return running

    def _hand_back_strays(self, unknown: Iterable[JobRecord]) -> None:
        now = time.monotonic()
        seen: dict[Fence, float] = {}
        for record in unknown:
            fence = record.head.fence
            # A blocked job is held by nobody on purpose: it waits for an operator.
            if fence is None or fence in self._roster.held or record.head.blocked:
                continue
            first = seen[fence] = self._strays.get(fence, now)
            asking = self._fetcher.asking_since
            if first < now and (asking is None or asking > first):
                self._hand_back(record, fence)
        self._strays = seen

    def _hand_back(self, record: JobRecord, fence: Fence) -> None:
        kind = self._planner.types.get((record.definition.service, record.definition.type))
        if kind is None:
            return
        attempt = Attempt(record, fence, kind, time.monotonic())
        attempt.closed = True
        self._settler.put(attempt, Release(fence, begun=False))

    def _lose_everything(self) -> None:
        if self._reopening is not None and not self._reopening.done():
            return
        _logger.warning("The session was ended by others: its jobs are lost to them.")
        for attempt in self._drop(self._roster.fences(self._session.id)):
            attempt.stop(Stop.LOST)
        self._reopening = asyncio.create_task(self._reopen(), name="trellis-session")

    async def _reopen(self) -> None:
        while True:
            sent = uptime()
            try:
                session = await self._session.open()
            except EngineError:
                await asyncio.sleep(1)
            else:
                self._time.learn(session.now, sent)
                self._fetcher.nudge()
                return
