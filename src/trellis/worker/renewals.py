"""Acting on what the engine reports about this worker's claims: cancels, lost and unknown attempts.

A handler is stopped only because the engine reported something, never because it did not answer. A
claim that the engine has and this worker does not know comes from a lost reply; it is handed back
as soon as no claim under way can still return it.
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
from trellis.core.job import Fence, Head, JobRecord, SessionId
from trellis.core.states import State
from trellis.engines.clock import uptime
from trellis.engines.port import Engine
from trellis.engines.values import Renewed, SessionLost
from trellis.errors import EngineError
from trellis.worker.attempt import Attempt, HeldAttempts, Stop
from trellis.worker.executor import Executor
from trellis.worker.failure_reports import FailureReports
from trellis.worker.fetcher import Fetcher, Planner
from trellis.worker.log import log_lost
from trellis.worker.loop import TaskLoop
from trellis.worker.session import EngineTime, SessionHolder
from trellis.worker.settler import Settler

_REOPEN_PAUSE: Final = 1.0
#: How often running attempts are looked at, and the least time between two looks.
_CHECK_INTERVAL: Final = 1.0
_CHECK_PAUSE: Final = 0.05
_PAGE: Final = 500
#: How many lost jobs are named in the log.
_NAMED: Final = 5
#: A lost attempt is stopped after this many seconds even if its head could not be read.
_LOOK_LIMIT: Final = 1.0
_logger = logging.getLogger(__name__)


class Renewals:
    """Acts on every answer to a renewal, on the worker's loop."""

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
        #: When each unknown claim was first reported, by the monotonic clock.
        self._unknown: dict[Fence, float] = {}
        self._reopening: asyncio.Task[None] | None = None
        self._closed = False

    def apply(self, session: SessionId, sent: Micros, answer: Renewed | SessionLost) -> None:
        """Act on the answer to a renewal of this session."""
        self._time.learn(answer.now, sent)
        if self._closed or session != self._session.id:  # late answer about an earlier session
            return
        if isinstance(answer, SessionLost):
            self._replace_session()
            return
        self._executor.notify_renewed()
        if answer.draining:
            self._on_drain()
        for fence in answer.asked:
            attempt = self._attempts.held.get(fence)
            if attempt is not None:
                attempt.cancel_requested = True
        if running := self._forget_waiting(answer.lost):
            stopping = asyncio.create_task(self._cancels.stop_lost(running), name="trellis-lost")
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
        self._release_unknown(answer.unknown)

    def close(self) -> None:
        """Open no further session."""
        self._closed = True
        if self._reopening is not None:
            self._reopening.cancel()

    def _forget_waiting(self, fences: Iterable[Fence]) -> list[Attempt]:
        """Forget lost attempts whose handlers were not called; return those that run."""
        running: list[Attempt] = []
        for fence in fences:
            attempt = self._attempts.held.get(fence)
            # The settler has a closed attempt: its own settlement may be what ended it.
            if attempt is None or attempt.closed:
                continue
            if attempt.running:
                running.append(attempt)
            else:
                self._executor.forget(attempt)
                self._attempts.held.pop(fence, None)
                self._attempts.report_stopped(attempt)
        return running

    def _release_unknown(self, unknown: Iterable[JobRecord]) -> None:
        now = time.monotonic()
        seen: dict[Fence, float] = {}
        for record in unknown:
            fence = record.head.fence
            # No worker holds a blocked job: it waits for an operator.
            if fence is None or fence in self._attempts.held or record.head.blocked:
                continue
            first = seen[fence] = self._unknown.get(fence, now)
            claiming = self._fetcher.claiming_since
            if first < now and (claiming is None or claiming > first):
                self._release(record, fence)
        self._unknown = seen

    def _release(self, record: JobRecord, fence: Fence) -> None:
        local_type = self._planner.types.get((record.definition.service, record.definition.type))
        if local_type is None:
            return
        attempt = Attempt(record, fence, local_type, time.monotonic())
        attempt.closed = True
        self._settler.put(attempt, Release(fence, begun=False))

    def _replace_session(self) -> None:
        if self._reopening is not None and not self._reopening.done():
            return
        lost = self._attempts.fences(self._session.id)
        _logger.warning(
            "Session %016x was ended by another worker, because its lease expired. The policies of "
            "its jobs decide what becomes of them (%s). Opening a new session.",
            self._session.id, self._named(lost),
        )  # fmt: skip
        for attempt in self._forget_waiting(lost):
            self._cancels.stop_attempt(attempt)
        self._reopening = asyncio.create_task(self._reopen(), name="trellis-session")

    def _named(self, fences: Sequence[Fence]) -> str:
        """Return the ids of the first jobs, and how many there are."""
        held = self._attempts.held
        ids = [held[fence].record.definition.id for fence in fences[:_NAMED] if fence in held]
        more = len(fences) - len(ids)
        return ", ".join([*ids, f"{more} more"] if more else ids) if fences else "it held none"

    async def _reopen(self) -> None:
        while True:
            sent = uptime()
            try:
                session = await self._session.open()
            except EngineError:
                await asyncio.sleep(_REOPEN_PAUSE)
            else:
                self._time.learn(session.now, sent)
                self._fetcher.nudge()
                return


class CancelWatch(TaskLoop):
    """Reads the heads of running attempts after a hint that one of them is being cancelled.

    So a cancel reaches its handler sooner than with the next renewal. A hint may be lost: attempts
    that have been running for a second are looked at every second. And where a renewal only reports
    an attempt as lost, the head distinguishes a forced cancel from every other end.
    """

    def __init__(self, engine: Engine, attempts: HeldAttempts, reports: FailureReports) -> None:
        self._engine = engine
        self._attempts = attempts
        self._reports = reports
        self._hinted = asyncio.Event()

    def nudge(self) -> None:
        """Look soon: a cancel may have been asked."""
        self._hinted.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL - _CHECK_PAUSE):
                    await self._hinted.wait()
            age = 0.0 if self._hinted.is_set() else _CHECK_INTERVAL
            self._hinted.clear()
            begun_before = time.monotonic() - age
            running = [
                attempt
                for attempt in self._attempts.running.values()
                if attempt.began < begun_before and attempt.stop_reason is None
            ]
            with suppress(EngineError):
                await self._look(running)

    async def stop_lost(self, attempts: Sequence[Attempt]) -> None:
        """Stop attempts that are over in the engine; mark those that a cancel ended."""
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_LOOK_LIMIT):
                await self._look(attempts)
        for attempt in attempts:
            self.stop_attempt(attempt)

    def stop_attempt(self, attempt: Attempt, head: Head | None = None) -> None:
        """Stop an attempt that is over in the engine, if it still runs; log and report that."""
        if attempt.stop(Stop.LOST) and not attempt.closed:
            log_lost(attempt.record, attempt.fence, head)
            if attempt.type.extensions.reporters:
                self._reports.put_lost(attempt)

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
                    self.stop_attempt(attempt, head)
