"""Storing how attempts ended. All settlements that wait form the next batch.

No settlement is dropped. While the engine is unavailable, settlements wait and are tried again. A
batch that the engine rejects because of its values is split until the cause is alone, which is then
settled as unstorable. Any other exception is not attributed to the job: the batch is tried again a
few times, then split, and an attempt that cannot be settled even alone is handed back. An attempt
is held until the engine has answered its settlement.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from trellis import control
from trellis.control import Applied, Contended, Result
from trellis.core.commands import Complete, FencedCommand
from trellis.core.durations import SECOND
from trellis.core.lifecycle import Stale
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.errors import EngineError, PayloadInvalid, Unstorable
from trellis.worker import outcomes
from trellis.worker.attempt import Attempt, HeldAttempts
from trellis.worker.failure_reports import FailureReports
from trellis.worker.log import log_settlement
from trellis.worker.loop import TaskLoop
from trellis.worker.metrics import NO_TELEMETRY, WorkerTelemetry
from trellis.worker.notes import NoteWriter
from trellis.worker.outage import OutageLog
from trellis.worker.session import EngineTime

if TYPE_CHECKING:
    from trellis.telemetry.tracing import Tracing

_BATCH: Final = 500
#: A worker claims no job while so many settlements wait. More would cost memory, and as many more
#: jobs would run again after a crash.
MOST_WAITING: Final = 4 * _BATCH
_RETRY_PAUSES: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
#: How often a batch is tried when storing it raises an exception that is not an engine error.
_TRIES: Final = len(_RETRY_PAUSES)
#: When a job that was handed back is due, and when handing it back is tried again after a failure.
_HAND_BACK_DELAY: Final = 10 * SECOND
_VALUE_ERRORS: Final = (Unstorable, PayloadInvalid)
_logger = logging.getLogger(__name__)

Settlement: TypeAlias = tuple[Attempt, FencedCommand]


class Settler(TaskLoop):
    """Stores settlements in batches."""

    def __init__(
        self,
        engine: Engine,
        attempts: HeldAttempts,
        notes: NoteWriter,
        engine_time: EngineTime,
        outage: OutageLog,
        *,
        reports: FailureReports,
        request_work: Callable[[], None],
        telemetry: WorkerTelemetry = NO_TELEMETRY,
    ) -> None:
        self._engine = engine
        self._reports = reports
        self._request_work = request_work
        self._metrics, self._tracing = telemetry
        if self._metrics is not None:
            self._metrics.settlements_waiting = lambda: len(self._waiting)
        self._outage = outage
        self._attempts = attempts
        self._notes = notes
        self._time = engine_time
        self._waiting: deque[Settlement] = deque()
        self._wakeup = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        #: Settlements stored, and results refused because the attempt was over.
        self.settled = 0
        self.refused = 0
        self.last_state: State | None = None

    def put(self, attempt: Attempt, command: FencedCommand) -> None:
        """Accept a settlement; it is stored with the next batch.

        What a handler did after its attempt was settled (`attempt.late`) must not reach the engine
        before that settlement. It is refused then, and noted in the journal.
        """
        if attempt.late is not None:
            if attempt.fence in self._attempts.held:
                return  # `_conclude` goes on with it
            attempt.late = None
        if not self._waiting:
            self._wakeup.set()
            self._empty.clear()
        self._waiting.append((attempt, command))

    @property
    def is_behind(self) -> bool:
        """Whether handlers end faster than the engine stores it."""
        return len(self._waiting) >= MOST_WAITING

    async def flush(self) -> None:
        """Wait until every accepted settlement is stored."""
        await self._empty.wait()

    async def run(self) -> None:
        """Store batch after batch until cancelled."""
        while True:
            await self._wakeup.wait()
            waiting, was_behind = self._waiting, self.is_behind
            batch = [waiting.popleft() for _ in range(min(len(waiting), _BATCH))]
            await self._settle(batch)
            if was_behind and not self.is_behind:
                self._request_work()
            if not waiting:
                self._wakeup.clear()
                self._empty.set()

    async def _settle(self, batch: Sequence[Settlement], tries: int = _TRIES) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._commit(batch)
            except EngineError as error:
                self._outage.failed("settlements", error, began)
            except _VALUE_ERRORS as error:
                await self._split(batch, error, tries)
                return
            except Exception as error:  # noqa: BLE001 - no fault may stop the other settlements
                tries -= 1
                if tries <= 0:
                    await self._split(batch, error, tries)
                    return
                _logger.warning(
                    "Storing %d settlements failed; will try again: %s: %s",
                    len(batch), type(error).__name__, error,
                )  # fmt: skip
            else:
                self._outage.answered("settlements")
                return
            await asyncio.sleep(_RETRY_PAUSES[min(failures, len(_RETRY_PAUSES) - 1)])
            failures += 1

    async def _commit(self, batch: Sequence[Settlement]) -> None:
        if self._notes.pending:
            await self._notes.flush()
        commands = [(attempt.record, command) for attempt, command in batch]
        results = await control.apply_all(self._engine, commands, self._time.now())
        if self._metrics is not None:
            self._metrics.settle(batch, results)
        if self._tracing is not None:
            _trace(self._tracing, batch, results)
        held = self._attempts.held
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
        self._attempts.held.pop(attempt.fence, None)
        if attempt.late is not None:
            self._waiting.append((attempt, attempt.late))
            attempt.late = None
        is_over = isinstance(result, Stale)
        self.refused += is_over
        self.settled += not is_over
        if is_over or type(command) is not Complete:
            log_settlement(attempt.record, attempt.fence, result)
        if isinstance(result, Applied):
            self.last_state = result.record.head.state
            if attempt.type.extensions.reporters:
                self._reports.put(attempt, command, result.record)
        # The engine keeps the key's slot from now on if the handler may still run. Report it here
        # if the handler has stopped since.
        if (is_over or not command.stopped) and not attempt.running:
            self._attempts.report_stopped(attempt)

    async def _split(self, batch: Sequence[Settlement], error: Exception, tries: int) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._settle(batch[:middle], tries)
            await self._settle(batch[middle:], tries)
            return
        ((attempt, command),) = batch
        if isinstance(error, _VALUE_ERRORS) and not _is_unstorable(command):
            message = f"The outcome could not be stored: {type(error).__name__}: {error}"
            failed = outcomes.failed_permanently(attempt, "unstorable", message)
            await self._settle([(attempt, failed)], tries)
        else:
            await self._hand_back(attempt, command, error)

    async def _hand_back(self, attempt: Attempt, command: FencedCommand, error: Exception) -> None:
        _logger.error(
            "The outcome of job %s cannot be stored; its attempt is handed back: %s: %s",
            attempt.record.definition.id, type(error).__name__, error,
        )  # fmt: skip
        returned = outcomes.not_stored(attempt, _HAND_BACK_DELAY, ended=command.stopped)
        try:
            await self._commit([(attempt, returned)])
        except Exception as failure:  # noqa: BLE001 - the attempt is held until this succeeds
            _logger.warning("Job %s cannot be handed back; will try again: %s",
                            attempt.record.definition.id, failure)  # fmt: skip
            loop = asyncio.get_running_loop()
            loop.call_later(_HAND_BACK_DELAY / SECOND, self.put, attempt, returned)


def _trace(tracing: Tracing, batch: Sequence[Settlement], results: Sequence[Result]) -> None:
    """Record the settlements of attempts that are traced."""
    now = time.monotonic()
    for (attempt, _), result in zip(batch, results, strict=True):
        if attempt.span is not None and isinstance(result, Applied):
            record, took = result.record, max(0.0, now - attempt.ended)
            tracing.settle(record.definition, record.head, attempt.span, took)


def _is_unstorable(command: FencedCommand) -> bool:
    return getattr(getattr(command, "error", None), "code", None) == "unstorable"
