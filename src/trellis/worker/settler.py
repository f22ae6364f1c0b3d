"""Recording how attempts ended: whatever has come since the last batch forms the next one.

Nothing is dropped. While anything is wrong with the engine, settlements wait and are tried again; a
batch refused for what it contains is split until the offender is alone, which is then settled as
unstorable. An attempt leaves the roster only here, once the engine has answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

from trellis import control
from trellis.control import Applied, Contended, Result
from trellis.core.commands import Complete, FencedCommand
from trellis.core.lifecycle import Stale
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.errors import EngineError
from trellis.worker import verdict
from trellis.worker.attempt import Attempt
from trellis.worker.engine_time import EngineTime
from trellis.worker.notes import NoteWriter
from trellis.worker.reports import report
from trellis.worker.roster import Roster

_MOST: Final = 500
_PATIENCE: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
_logger = logging.getLogger(__name__)

Settlement: TypeAlias = tuple[Attempt, FencedCommand]


class Settler:
    """The way of outcomes to the engine."""

    def __init__(
        self, engine: Engine, roster: Roster, notes: NoteWriter, engine_time: EngineTime
    ) -> None:
        self._engine = engine
        self._roster = roster
        self._notes = notes
        self._time = engine_time
        self._waiting: deque[Settlement] = deque()
        self._news = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        #: Settlements stored, and results refused because the attempt was over.
        self.settled = 0
        self.refused = 0
        self.last_state: State | None = None

    def put(self, attempt: Attempt, command: FencedCommand) -> None:
        """Take over a settlement; it is stored with the next batch."""
        if not self._waiting:
            self._news.set()
            self._done.clear()
        self._waiting.append((attempt, command))

    async def flush(self) -> None:
        """Wait until everything taken over is stored."""
        await self._done.wait()

    async def run(self) -> None:
        """Store batch after batch."""
        while True:
            await self._news.wait()
            waiting = self._waiting
            batch = [waiting.popleft() for _ in range(min(len(waiting), _MOST))]
            await self._settle(batch)
            if not waiting:
                self._news.clear()
                self._done.set()

    async def _settle(self, batch: Sequence[Settlement]) -> None:
        failures = 0
        while True:
            try:
                await self._commit(batch)
            except EngineError as error:
                if not failures:
                    _logger.warning("%d settlements wait for the engine: %s", len(batch), error)
                await asyncio.sleep(_PATIENCE[min(failures, len(_PATIENCE) - 1)])
                failures += 1
            except Exception as error:  # noqa: BLE001 - one bad settlement must not stop the others
                await self._split(batch, error)
                return
            else:
                return

    async def _commit(self, batch: Sequence[Settlement]) -> None:
        if self._notes.pending:
            await self._notes.flush()
        asked = [(attempt.record, command) for attempt, command in batch]
        results = await control.apply_all(self._engine, asked, self._time.now())
        held = self._roster.held
        for (attempt, command), result in zip(batch, results, strict=True):
            if type(result) is Applied and type(command) is Complete:  # most are
                held.pop(attempt.fence, None)
                self.settled += 1
                self.last_state = result.record.head.state
            else:
                self._conclude(attempt, command, result)

    def _conclude(self, attempt: Attempt, command: FencedCommand, result: Result) -> None:
        if isinstance(result, Contended):
            attempt.record = result.record
            self._waiting.append((attempt, command))
            return
        self._roster.held.pop(attempt.fence, None)
        is_over = isinstance(result, Stale)
        self.refused += is_over
        self.settled += not is_over
        if type(command) is not Complete:
            report(attempt, result)
        if isinstance(result, Applied):
            self.last_state = result.record.head.state
        # Only now does the engine keep the key's slot for a handler that may run on, so a handler
        # that has stopped meanwhile must be reported from here.
        if (is_over or not command.stopped) and not attempt.running:
            self._roster.has_stopped(attempt)

    async def _split(self, batch: Sequence[Settlement], error: Exception) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        ((attempt, command),) = batch
        if _is_unstorable(command):
            _logger.error("Job %s cannot be settled: %s", attempt.record.definition.id, error)
            self._roster.held.pop(attempt.fence, None)
            return
        message = f"The outcome could not be stored: {type(error).__name__}: {error}"
        await self._settle([(attempt, verdict.failed_for_good(attempt, "unstorable", message))])


def _is_unstorable(command: FencedCommand) -> bool:
    return getattr(getattr(command, "error", None), "code", None) == "unstorable"
