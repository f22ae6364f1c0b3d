"""Running attempts in handler processes, and suspects alone in the worker's own process.

An attempt that was stopped is settled only after its process has been killed or its handler has
ended. So the settlement can report that the handler has stopped, which frees the key of the job.

A suspect whose handler no other process can import (it was defined inside a function) runs in the
worker's process while nothing else does: if the process dies again, only one attempt can be the
cause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import Any, Final

from trellis.core.commands import Complete, Crash, FencedCommand
from trellis.core.durations import SECOND, in_words
from trellis.core.job import Fence, JobId, JobRecord
from trellis.declaration.imports import HandlerName, around_modules, importable, importable_lifespan
from trellis.declaration.job_type import JobType
from trellis.declaration.worker_location import WorkerLocation
from trellis.errors import ConfigurationError
from trellis.worker import outcomes
from trellis.worker.active_job import JobEnvironment
from trellis.worker.attempt import AT_STOP, Attempt
from trellis.worker.child_process import ProcessEnd
from trellis.worker.handler_call import enter
from trellis.worker.isolation import protocol
from trellis.worker.isolation.pool import HandlerPool, HandlerProcess, NotStarted
from trellis.worker.isolation.protocol import BadMessage, Message
from trellis.worker.local_type import LocalType
from trellis.worker.log import JobLog

#: How long an interrupted handler may take before its process is killed, in seconds.
_INTERRUPT_TIMEOUT: Final = 0.25
#: The same when the worker stops: the handler has had the whole grace before.
_SHUTDOWN_TIMEOUT: Final = 0.1
#: When a job is tried again for which no process could be started.
_START_AGAIN: Final = 5 * SECOND
#: How long an exclusive run waits for other attempts, in seconds; a process should not be idle for
#: longer.
_EXCLUSIVE_TIMEOUT: Final = 10.0
_EXCLUSIVE_POLL: Final = 0.01
_logger = logging.getLogger(__name__)


def check_isolation(job_types: Sequence[JobType], locations: Mapping[str, WorkerLocation]) -> None:
    """Raise `ConfigurationError` for handlers and lifespans that another process cannot import."""
    for job_type in job_types:
        if job_type.isolation == "process":
            importable(job_type)
            around_modules(job_type)
            location = locations.get(job_type.service)
            if location is not None and location.make_lifespan is not None:
                importable_lifespan(job_type.service, location.make_lifespan)


class IsolatedRunner:
    """Runs attempts of one worker process in handler processes."""

    def __init__(
        self,
        slots: int,
        *,
        environment: JobEnvironment,
        locations: Mapping[str, WorkerLocation],
        is_ending: Callable[[], bool],
    ) -> None:
        self._environment = environment
        self._locations = locations
        self._is_ending = is_ending
        #: Called with the type of an attempt that has crashed its handler process.
        self.on_crash: Callable[[LocalType], None] = lambda _: None
        self._pool = HandlerPool(slots)
        self._context = copy_context()

    def notify_stopping(self) -> None:
        """Report to the handlers that the worker is stopping."""
        self._pool.notify_stopping()

    def notify_renewed(self) -> None:
        """Report the lease of the worker to the handlers."""
        self._pool.notify_renewed(self._environment.read_lease())

    async def close(self) -> None:
        """End all processes."""
        await self._pool.close()

    async def run(self, attempt: Attempt, on_started: Callable[[], None]) -> FencedCommand | None:
        """Run an attempt; return what settles it, or None if this worker may not settle it."""
        name = attempt.type.handler_name
        if name is None:
            raise ConfigurationError(
                f"Another process cannot import the handler of {attempt.type.job_type!r}."
            )
        fields = self._load_fields(attempt, name)
        try:
            run = await self._run_once(attempt, name, fields, on_started, fresh=attempt.is_suspect)
            if run is not None and not run.is_accepted and attempt.stop_reason is None:
                # The process had ended while it was idle, and that was not noticed before.
                run = await self._run_once(attempt, name, fields, on_started, fresh=True)
        except NotStarted as error:
            _logger.error(  # noqa: TRY400 - the reason is in the message
                "No process can be started for a handler; the job is tried again in %s: %s",
                in_words(_START_AGAIN), error,
            )  # fmt: skip
            return outcomes.not_started(attempt, _START_AGAIN)
        command = _settlement(attempt, run)
        if isinstance(command, Crash):
            self.on_crash(attempt.type)
        return command

    async def _run_once(
        self,
        attempt: Attempt,
        name: HandlerName,
        load_fields: dict[str, Any],
        on_started: Callable[[], None],
        *,
        fresh: bool,
    ) -> IsolatedRun | None:
        """Run the attempt in a process; None if it was stopped before there was one."""
        process = await self._take_process(attempt, name, fresh=fresh)
        if process is None:
            return None
        context = self._context.copy()
        context.run(enter, JobLog(attempt, self._environment.notes))
        run = IsolatedRun(
            process, attempt,
            environment=self._environment, context=context, on_started=on_started,
        )  # fmt: skip
        run.begin(load_fields)
        try:
            await self._wait(run)
        finally:
            run.end()
            self._return_process(run)
        return run

    def _load_fields(self, attempt: Attempt, name: HandlerName) -> dict[str, Any]:
        """Return what a handler process needs to load the handler."""
        service = attempt.record.definition.service
        location = self._locations.get(service)
        make = None if location is None else location.make_lifespan
        return {
            "handler": name,
            "service": service,
            "home": None if location is None else [location.url, location.is_shared],
            "lifespan": None if make is None else importable_lifespan(service, make),
            "modules": around_modules(attempt.type.job_type),
        }

    async def _take_process(
        self, attempt: Attempt, name: HandlerName, *, fresh: bool
    ) -> HandlerProcess | None:
        taking = asyncio.ensure_future(self._pool.take(name, fresh=fresh))
        while not taking.done():
            try:
                await asyncio.wait((taking,))
            except asyncio.CancelledError:
                if not self._is_ending() and attempt.stop_reason is None:
                    continue  # caused by an earlier handler
                taking.add_done_callback(self._give_back_unused)
                if self._is_ending():
                    raise
                return None
        return taking.result()

    def _give_back_unused(self, taking: asyncio.Future[HandlerProcess]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            self._pool.give_back(taking.result())

    async def _wait(self, run: IsolatedRun) -> None:
        """Wait for the end; if the attempt is stopped, interrupt its handler, then kill it."""
        process = run.process
        kill_timer: asyncio.TimerHandle | None = None
        while not run.over.done():
            try:
                await asyncio.wait((run.over,))
            except asyncio.CancelledError:
                if self._is_ending():
                    process.kill()
                    raise
                reason = run.attempt.stop_reason
                if reason is not None and kill_timer is None:
                    process.send("interrupt")
                    timeout = _SHUTDOWN_TIMEOUT if reason in AT_STOP else _INTERRUPT_TIMEOUT
                    kill_timer = asyncio.get_running_loop().call_later(timeout, process.kill)
        if kill_timer is not None:
            kill_timer.cancel()

    def _return_process(self, run: IsolatedRun) -> None:
        """Keep the process for another attempt, or end it."""
        if run.command is None or run.attempt.stop_reason is not None:
            run.process.kill()
        elif run.discard_process or run.attempt.is_suspect:
            self._pool.retire(run.process)
        else:
            self._pool.give_back(run.process)


def _settlement(attempt: Attempt, run: IsolatedRun | None) -> FencedCommand | None:
    """Return what settles an attempt whose run is over."""
    command = None if run is None else run.command
    if isinstance(command, Complete):
        return command
    if attempt.stop_reason is not None:
        return outcomes.stopped(attempt, attempt.stop_reason, ended=True)
    if command is not None:
        return command
    if run is None or run.process_end is None:
        raise RuntimeError("An attempt ended without an outcome in a process that still runs.")
    if not run.is_accepted:
        return outcomes.not_started(attempt, _START_AGAIN)
    return outcomes.crashed(attempt, run.process_end.evidence("The handler's process"))


class IsolatedRun:
    """One attempt in one handler process: sends the job and handles the messages about it.

    Notes are stored in the order in which they were made, and all of them before the outcome, since
    they arrive over the same channel. A message with the token of an earlier attempt is not stored.
    """

    def __init__(
        self,
        process: HandlerProcess,
        attempt: Attempt,
        *,
        environment: JobEnvironment,
        context: Context,
        on_started: Callable[[], None],
    ) -> None:
        self.process = process
        self.attempt = attempt
        #: Done when the outcome has arrived or the process has ended.
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: What settles the attempt, if its handler has ended.
        self.command: FencedCommand | None = None
        #: How the process ended, if it did.
        self.process_end: ProcessEnd | None = None
        #: Whether the process has received the job; before that, the job cannot have ended it.
        self.is_accepted = False
        #: Whether the next attempt should get another process.
        self.discard_process = False
        self._environment = environment
        self._context = context
        self._on_started = on_started

    def begin(self, load_fields: dict[str, Any]) -> None:
        """Send the job to the process."""
        self.process.on_message = self._handle
        self.process.ended.add_done_callback(self._note_process_end)
        self.attempt.on_cancel_requested = self._send_cancel
        record = protocol.encode_record(_traced(self.attempt))
        self.process.send(
            "job", record=record, fence=self.attempt.fence, items=self.attempt.earlier_items,
            lease=protocol.encode_lease(self._environment.read_lease()), **load_fields,
        )  # fmt: skip
        if self.attempt.cancel_requested:
            self._send_cancel()

    def end(self) -> None:
        """Handle no more messages."""
        self.attempt.on_cancel_requested = None
        self.process.on_message = self.process.handle_idle
        self.process.ended.remove_done_callback(self._note_process_end)

    def _send_cancel(self) -> None:
        self.process.send("cancel_requested")

    def _note_process_end(self, ended: asyncio.Future[ProcessEnd]) -> None:
        self.process_end = ended.result()
        if not self.over.done():
            self.over.set_result(None)

    def _handle(self, message: Message) -> None:
        if message.get("token") != self.attempt.fence.token or self.over.done():
            self.process.handle_idle(message)
            return
        match message["message"]:
            case "accepted":
                self.is_accepted = True
            case "started":
                self._on_started()
            case "note":
                self._environment.notes.add(self.attempt, protocol.decode_note(message))
            case "log_record":
                protocol.emit_log_record(message, self._context)
            case "lock_request" if self._environment.locks is not None:
                self.process.serve_lock(message, self.attempt.fence, self._environment.locks)
            case "lock_request":
                self.process.handle_idle(message)
            case "outcome":
                self.command = protocol.decode_outcome(message, self.attempt)
                self.discard_process = bool(message.get("discard_process"))
                self.over.set_result(None)
            case other:
                raise BadMessage(f"an unknown message type, {other!r}")


class ExclusiveRun:
    """Lets one attempt run while no other attempt does in this process."""

    def __init__(self, running: Mapping[Fence, Attempt], on_end: Callable[[], None]) -> None:
        self._running = running
        self._on_end = on_end
        self._requested: dict[Fence, JobId] = {}
        #: Whether an attempt runs exclusively or waits for that; no other attempt may begin.
        self.is_requested = False

    @asynccontextmanager
    async def of(self, attempt: Attempt) -> AsyncIterator[None]:
        """Wait until no other attempt runs; none begins before the block or `end` ends it."""
        self._requested[attempt.fence] = attempt.record.definition.id
        self.is_requested = True
        try:
            await self._wait_for_others(attempt)
            yield
        finally:
            self.end(attempt)

    @property
    def job_id(self) -> JobId | None:
        """The job of that attempt; safe from any thread."""
        return next(iter(tuple(self._requested.values())), None)

    def end(self, attempt: Attempt) -> None:
        """Let other attempts begin, if this one has kept them from it."""
        if attempt.fence in self._requested:
            del self._requested[attempt.fence]
            self.is_requested = bool(self._requested)
            self._on_end()

    async def _wait_for_others(self, attempt: Attempt) -> None:
        deadline = time.monotonic() + _EXCLUSIVE_TIMEOUT
        while len(self._running) > 1:
            if time.monotonic() > deadline:
                _logger.warning(
                    "Job %s should run alone, because a process died while it ran beside other "
                    "jobs. Other jobs still run after %.0f s, so it now runs beside them.",
                    attempt.record.definition.id, _EXCLUSIVE_TIMEOUT,
                )  # fmt: skip
                return
            await asyncio.sleep(_EXCLUSIVE_POLL)


def _traced(attempt: Attempt) -> JobRecord:
    """Return the job; what its handler does belongs to the span of the attempt, if it has one."""
    record = attempt.record
    if attempt.span is None:
        return record
    context = attempt.span.inside(record.definition.context)
    return record._replace(definition=record.definition._replace(context=context))
