"""Calling the error reporters of services: once per failed attempt, after its settlement is stored.

An attempt may be ended by maintenance in another process, which need not have the reporters. Then
the process that runs its handler reports it as soon as it learns of it; the journal has the error.

A reporter cannot change an outcome, nor delay a settlement: reports wait in a queue of their own. A
plain reporter is called in a thread. What it raises is logged. If reports come faster than
reporters take them, the newest are dropped and counted in the log.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from trellis.core.commands import Crash, Fail, FencedCommand, LoseLease
from trellis.core.job import Failure, JobRecord
from trellis.core.states import State
from trellis.declaration.extensions import ErrorReporter
from trellis.engines.port import Engine
from trellis.errors import EngineError
from trellis.insight.attempts import view_of
from trellis.insight.views import ErrorView, JobView, error_view
from trellis.worker.attempt import Attempt
from trellis.worker.handler_call import HandlerThreads
from trellis.worker.loop import TaskLoop

_MOST_WAITING: Final = 1000
#: How long one call of a reporter may take, in seconds.
_CALL_LIMIT: Final = 30.0
_FAILED: Final = frozenset({State.RETRY, State.FAILED, State.DEAD, State.STALE})
_logger = logging.getLogger(__name__)


class AttemptError(Exception):
    """Stands for an exception that the worker does not have: a timeout, or in another process.

    Its notes have the stack, if there was one.
    """

    def __init__(self, error: ErrorView) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.code = error.code
        if error.detail:
            self.add_note(error.detail)


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """A failed attempt, as error reporters get it."""

    #: What the handler raised; an `AttemptError` where the worker has no exception object.
    exception: BaseException
    #: Code, message and stack, as they are stored.
    error: ErrorView
    #: The job after the failure.
    job: JobView
    #: The number of the attempt that failed.
    attempt: int
    #: Whether the job waits for its next attempt.
    will_retry: bool


@dataclass(frozen=True, slots=True)
class _Waiting:
    attempt: Attempt
    #: The job after the failure; None if another process ended the attempt.
    record: JobRecord | None


class FailureReports(TaskLoop):
    """Reports failed attempts of one worker process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue(_MOST_WAITING)
        self._threads: HandlerThreads | None = None
        self._dropped = 0

    def put(self, attempt: Attempt, command: FencedCommand, record: JobRecord) -> None:
        """Accept the failure of an attempt whose settlement is stored; other ends are left out."""
        failure = record.head.error
        if (
            not isinstance(command, Fail | Crash | LoseLease)
            or record.head.state not in _FAILED
            or failure is None
            or (failure.code == "retry_in" and record.head.state is State.RETRY)
        ):
            return
        self._put(_Waiting(attempt, record))

    def put_lost(self, attempt: Attempt) -> None:
        """Accept an attempt that another process ended; reported if it failed."""
        self._put(_Waiting(attempt, None))

    def _put(self, waiting: _Waiting) -> None:
        try:
            self._waiting.put_nowait(waiting)
        except asyncio.QueueFull:
            self._dropped += 1

    async def flush(self) -> None:
        """Wait until every accepted failure is reported."""
        await self._waiting.join()

    async def run(self) -> None:
        """Report failure after failure until cancelled."""
        try:
            while True:
                await self._report_next()
        finally:
            if self._threads is not None:
                self._threads.close()

    async def _report_next(self) -> None:
        waiting = await self._waiting.get()
        try:
            await self._report(waiting)
        finally:
            self._waiting.task_done()
        if self._dropped and self._waiting.empty():
            dropped, self._dropped = self._dropped, 0
            _logger.warning(
                "%d failed attempts were not reported: the error reporters are too slow.", dropped
            )

    async def _report(self, waiting: _Waiting) -> None:
        attempt = waiting.attempt
        try:
            found = await self._read(waiting)
        except EngineError as away:
            _logger.warning("A failed attempt was not reported: %s", away)
            return
        if found is None:
            return
        job, error, state = found
        failure = AttemptFailure(
            exception=attempt.exception or AttemptError(error),
            error=error,
            job=job,
            attempt=attempt.record.head.attempt,
            will_retry=state is State.RETRY,
        )
        for reporter in attempt.type.extensions.reporters:
            await self._call(reporter, failure)

    async def _read(self, waiting: _Waiting) -> tuple[JobView, ErrorView, State] | None:
        """Return the job, the error of the attempt and the state after it; None: no failure."""
        record = waiting.record
        if record is not None:
            job = await view_of(self._engine, record)
            return None if job.error is None else (job, job.error, job.state)
        job_id, fence = waiting.attempt.record.definition.id, waiting.attempt.fence
        present = (await self._engine.load([job_id])).records[0]
        for event in await self._engine.journal(job_id):
            error: Any = (event.data or {}).get("error")
            if event.fence == fence and event.state in _FAILED and error:
                view = error_view(Failure(*error))
                if present is not None and view is not None:
                    return await view_of(self._engine, present), view, event.state
        return None

    async def _call(self, reporter: ErrorReporter, failure: AttemptFailure) -> None:
        try:
            async with asyncio.timeout(_CALL_LIMIT):
                if inspect.iscoroutinefunction(reporter):
                    await reporter(failure)
                else:
                    self._threads = self._threads or HandlerThreads(1)
                    call = partial(reporter, failure)
                    answer = await self._threads.call(call, copy_context())
                    if inspect.isawaitable(answer):
                        await answer
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if isinstance(error, TimeoutError):
                self._threads = None  # its thread may be stuck; the next call gets another one
            _logger.exception(
                "An error reporter failed; the outcome of job %s stays", failure.job.id
            )
