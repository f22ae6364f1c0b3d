"""Acting on what the engine says about our claims: cancels to pass on, attempts we lost, strays.

A handler is stopped only by the engine's word, never by a silence. A claim the engine knows and we
do not is a lost reply: it is handed back once no claim of ours can still bring it.

Reading the heads of running attempts: which were cancelled, which were ended otherwise.

Once a second this passes cancels on sooner than the next renewal does. And it tells apart, for a
renewal that only reports an attempt as lost, a forced cancel from every other end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from trellis.core.commands import Release
from trellis.core.durations import Micros
from trellis.core.job import Fence, JobRecord, SessionId
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Renewed, SessionLost
from trellis.errors import EngineError, EngineUnavailable
from trellis.worker.attempt import Attempt, HeldAttempts, Stop
from trellis.worker.clock import EngineTime, uptime
from trellis.worker.demand import Planner
from trellis.worker.executor import Executor
from trellis.worker.fetcher import Fetcher
from trellis.worker.session import SessionHolder
from trellis.worker.settler import Settler

_logger = logging.getLogger(__name__)


class Renewals:
    """Hears every answer to a renewal, on the worker's loop."""

    def __init__(
        self,
        *,
        session: SessionHolder,
        attempts: HeldAttempts,
        executor: Executor,
        fetcher: Fetcher,
        planner: Planner,
        settler: Settler,
        engine_time: EngineTime,
        cancels: CancelWatch,
        on_drain: Callable[[], None],
    ) -> None:
        self._session = session
        self._attempts = attempts
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
            self._ask(self._attempts.held.get(fence))
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
            attempt.cancel_requested = True

    def _drop(self, fences: Iterable[Fence]) -> list[Attempt]:
        """Forget lost attempts that have not begun; return those that run."""
        running: list[Attempt] = []
        for fence in fences:
            attempt = self._attempts.held.get(fence)
            # A closed attempt is in the settler's hands: its own settlement may be what ended it.
            if attempt is None or attempt.closed:
                continue
            if attempt.running:
                running.append(attempt)
            else:
                self._executor.drop(attempt)
                self._attempts.held.pop(fence, None)
                self._attempts.report_stopped(attempt)
        return running

    def _hand_back_strays(self, unknown: Iterable[JobRecord]) -> None:
        now = time.monotonic()
        seen: dict[Fence, float] = {}
        for record in unknown:
            fence = record.head.fence
            # A blocked job is held by nobody on purpose: it waits for an operator.
            if fence is None or fence in self._attempts.held or record.head.blocked:
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
        for attempt in self._drop(self._attempts.fences(self._session.id)):
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


_EVERY: Final = 1.0
_PAGE: Final = 500
#: A lost attempt is stopped at the latest after this long, whether its head could be read or not.
_PATIENCE: Final = 1.0


class CancelWatch:
    """Looks once a second at the heads of attempts that have been running for a second."""

    def __init__(self, engine: Engine, attempts: HeldAttempts) -> None:
        self._engine = engine
        self._attempts = attempts

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_EVERY)
            begun_before = time.monotonic() - _EVERY
            running = [
                attempt
                for attempt in self._attempts.running.values()
                if attempt.began < begun_before and attempt.stop_reason is None
            ]
            with suppress(EngineUnavailable):
                await self._look(running)

    async def stop_lost(self, attempts: Sequence[Attempt]) -> None:
        """Stop attempts that are over in the engine; let those know that a cancel ended."""
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._look(attempts)
        for attempt in attempts:
            attempt.stop(Stop.LOST)

    async def _look(self, attempts: Sequence[Attempt]) -> None:
        for start in range(0, len(attempts), _PAGE):
            page = attempts[start : start + _PAGE]
            loaded = await self._engine.load([each.record.definition.id for each in page])
            for attempt, record in zip(page, loaded.records, strict=True):
                head = None if record is None else record.head
                if head is not None and (
                    head.asked_at is not None or head.state is State.CANCELLED
                ):
                    attempt.cancel_requested = True
                if head is None or head.fence != attempt.fence:
                    attempt.stop(Stop.LOST)
