"""Suspects that no other process can run: with nothing else in this one.

Their handlers cannot be found by name (they were made inside a function), so a child is no place
for them. If this process dies again, there is exactly one attempt to blame.

One attempt in one handler process: what its handler says there, and how that ends.

Notes are passed on in the order in which they were made, and all of them before the verdict, since
they come over the same line. What an earlier attempt's leftovers say carries another token and is
dropped.

Running attempts in handler processes: from the slot's wish to the command that settles.

Whatever stops an attempt, its process is gone, or its handler has ended, before the attempt is
settled; so the settlement may say that the handler has stopped, which frees its key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import Any, Final

from trellis.core.commands import Complete, FencedCommand
from trellis.core.durations import SECOND
from trellis.core.job import Fence
from trellis.declaration.imports import HandlerName, importable, importable_lifespan
from trellis.declaration.job_type import JobType
from trellis.declaration.worker_location import Home
from trellis.errors import ConfigurationError
from trellis.worker import outcomes
from trellis.worker.active_job import JobEnvironment
from trellis.worker.attempt import Attempt, Stop
from trellis.worker.child_process import ProcessEnd
from trellis.worker.handler_call import enter
from trellis.worker.isolation import protocol
from trellis.worker.isolation.pool import HandlerProcess, HandlerProcesses, NotStarted
from trellis.worker.isolation.protocol import BadMessage, Message, ask_for
from trellis.worker.log import JobLog

#: How long others may take to end; a longer one is no reason to keep a whole process idle.
_PATIENCE: Final = 10.0
_TICK: Final = 0.01
_logger = logging.getLogger(__name__)


class Solitude:
    """Lets an attempt be alone among those that run here: from its wish on, none may begin."""

    def __init__(self, running: Mapping[Fence, Attempt], on_over: Callable[[], None]) -> None:
        self._running = running
        self._on_over = on_over
        #: Whether an attempt is alone, or waits to be.
        self.is_wanted = False

    @asynccontextmanager
    async def of(self, attempt: Attempt) -> AsyncIterator[None]:
        """Wait until nothing else runs, and keep it so."""
        self.is_wanted = True
        try:
            await self._until_alone(attempt)
            yield
        finally:
            self.is_wanted = False
            self._on_over()

    async def _until_alone(self, attempt: Attempt) -> None:
        gives_up = time.monotonic() + _PATIENCE
        while len(self._running) > 1:
            if time.monotonic() > gives_up:
                _logger.warning(
                    "Job %s should run alone, because a process died with it among others, but "
                    "other jobs take long; it now runs beside them.",
                    attempt.record.definition.id,
                )
                return
            await asyncio.sleep(_TICK)


class Visit:
    """An attempt's time in a process."""

    def __init__(
        self,
        process: HandlerProcess,
        attempt: Attempt,
        *,
        environment: JobEnvironment,
        context: Context,
        on_begun: Callable[[], None],
    ) -> None:
        self.process = process
        self.attempt = attempt
        #: Done when there is a verdict, or the process has died.
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: What settles the attempt, if its handler came to an end.
        self.command: FencedCommand | None = None
        #: How the process ended, if it did.
        self.death: ProcessEnd | None = None
        #: Whether the process has taken the job; before that, its death is not the job's doing.
        self.is_taken = False
        #: Whether the next attempt had better get another process.
        self.is_worn = False
        self._environment = environment
        self._context = context
        self._on_begun = on_begun

    def begin(self, order: dict[str, Any]) -> None:
        """Give the job to the process."""
        self.process.hear = self._hear
        self.process.ended.add_done_callback(self._died)
        self.attempt.on_cancel_requested = self._ask
        fence = self.attempt.fence
        record = protocol.write_record(self.attempt.record)
        self.process.say("job", record=record, fence=fence, **order)
        if self.attempt.cancel_requested:
            self._ask()

    def end(self) -> None:
        """Hear no more."""
        self.attempt.on_cancel_requested = None
        self.process.hear = self.process.hear_nobody
        self.process.ended.remove_done_callback(self._died)

    def _ask(self) -> None:
        self.process.say("asked")

    def _died(self, ended: asyncio.Future[ProcessEnd]) -> None:
        self.death = ended.result()
        if not self.over.done():
            self.over.set_result(None)

    def _hear(self, message: Message) -> None:
        is_ours = message.get("token") == self.attempt.fence.token and not self.over.done()
        if is_ours:
            self._act_on(message["word"], message)
        else:
            self.process.hear_nobody(message)

    def _act_on(self, word: str, message: Message) -> None:
        match word:
            case "taken":
                self.is_taken = True
            case "begun":
                self._on_begun()
            case "note":
                self._environment.notes.add(self.attempt, protocol.read_note(message))
            case "record":
                protocol.emit(message, self._context)
            case "ask":
                locks = self._environment.locks
                ask_for(message, self.attempt.fence, locks, self.process.answer)
            case "ended":
                self.command = protocol.read_verdict(message, self.attempt)
                if self.command is None:
                    self.attempt.mark_over()
                self.is_worn = bool(message.get("worn"))
                self.over.set_result(None)
            case _:
                raise BadMessage(f"an unknown word, {word!r}")


#: How long a handler that was told to end may take before its process is killed. When the worker
#: stops, it has had the whole grace before.
_MOMENT: Final = 0.25
_LAST_MOMENT: Final = 0.1
#: When a job is tried again for which no process could be started.
_AGAIN: Final = 5 * SECOND


def check_isolation(job_types: Sequence[JobType], homes: Mapping[str, Home]) -> None:
    """Refuse, before work begins, what no handler process could find."""
    for job_type in job_types:
        if job_type.isolation == "process":
            importable(job_type)
            home = homes.get(job_type.service)
            if home is not None and home.make_lifespan is not None:
                importable_lifespan(job_type.service, home.make_lifespan)


class Isolation:
    """The attempts of one worker process that run in processes of their own."""

    def __init__(
        self,
        slots: int,
        *,
        environment: JobEnvironment,
        homes: Mapping[str, Home],
        is_ending: Callable[[], bool],
    ) -> None:
        self._environment = environment
        self._homes = homes
        self._is_ending = is_ending
        self._processes = HandlerProcesses(slots)
        self._context = copy_context()

    def tell_stopping(self) -> None:
        """Pass on that the worker was told to stop."""
        self._processes.tell_stopping()

    async def close(self) -> None:
        """End all processes."""
        await self._processes.close()

    async def run(self, attempt: Attempt, on_begun: Callable[[], None]) -> FencedCommand | None:
        """Run an attempt to its end; None if it is no longer ours to settle."""
        name = attempt.type.handler_name
        if name is None:
            raise ConfigurationError(f"No other process finds {attempt.type.job_type!r}.")
        order = self._order(attempt, name)
        try:
            visit = await self._visit(attempt, name, order, on_begun, fresh=attempt.is_suspect)
            if visit is not None and not visit.is_taken and attempt.stop_reason is None:
                # It had died unnoticed while it had nothing to do.
                visit = await self._visit(attempt, name, order, on_begun, fresh=True)
        except NotStarted as error:
            _logger.error("No process can be started for a handler: %s", error)  # noqa: TRY400
            return outcomes.not_started(attempt, _AGAIN)
        return _settlement(attempt, visit)

    def _order(self, attempt: Attempt, name: HandlerName) -> dict[str, Any]:
        service = attempt.record.definition.service
        home = self._homes.get(service)
        make = None if home is None else home.make_lifespan
        return {
            "handler": name,
            "service": service,
            "home": None if home is None else [home.url, home.is_shared],
            "lifespan": None if make is None else importable_lifespan(service, make),
        }

    async def _visit(
        self,
        attempt: Attempt,
        name: HandlerName,
        order: dict[str, Any],
        on_begun: Callable[[], None],
        *,
        fresh: bool,
    ) -> Visit | None:
        """Have a process run the attempt; None if it was stopped before there was one."""
        process = await self._process(attempt, name, fresh=fresh)
        if process is None:
            return None
        visit = self._visit_to(process, attempt, on_begun)
        visit.begin(order)
        try:
            await self._see_through(visit)
        finally:
            visit.end()
            self._part(visit)
        return visit

    def _visit_to(
        self, process: HandlerProcess, attempt: Attempt, on_begun: Callable[[], None]
    ) -> Visit:
        around = self._environment
        context = self._context.copy()
        context.run(enter, JobLog(attempt, around.notes))
        return Visit(process, attempt, environment=around, context=context, on_begun=on_begun)

    async def _process(
        self, attempt: Attempt, name: HandlerName, *, fresh: bool
    ) -> HandlerProcess | None:
        taking = asyncio.ensure_future(self._processes.take(name, fresh=fresh))
        while not taking.done():
            try:
                await asyncio.wait((taking,))
            except asyncio.CancelledError:
                if not self._is_ending() and attempt.stop_reason is None:
                    continue  # a leftover of another handler
                taking.add_done_callback(self._not_needed)
                if self._is_ending():
                    raise
                return None
        return taking.result()

    def _not_needed(self, taking: asyncio.Future[HandlerProcess]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            self._processes.give_back(taking.result())

    async def _see_through(self, visit: Visit) -> None:
        """Wait for the end; if the attempt is stopped, see to it that it comes soon."""
        process = visit.process
        killing: asyncio.TimerHandle | None = None
        while not visit.over.done():
            try:
                await asyncio.wait((visit.over,))
            except asyncio.CancelledError:
                if self._is_ending():
                    process.kill()
                    raise
                reason = visit.attempt.stop_reason
                if reason is not None and killing is None:
                    process.say("interrupt")
                    moment = _LAST_MOMENT if reason is Stop.SHUTDOWN else _MOMENT
                    killing = asyncio.get_running_loop().call_later(moment, process.kill)
        if killing is not None:
            killing.cancel()

    def _part(self, visit: Visit) -> None:
        """Decide whether the process may run another attempt."""
        if visit.command is None or visit.attempt.stop_reason is not None:
            visit.process.kill()
        elif visit.is_worn or visit.attempt.is_suspect:
            self._processes.dismiss(visit.process)
        else:
            self._processes.give_back(visit.process)


def _settlement(attempt: Attempt, visit: Visit | None) -> FencedCommand | None:
    """Return what settles an attempt whose visit is over."""
    command = None if visit is None else visit.command
    if isinstance(command, Complete):
        return command
    if attempt.stop_reason is not None:
        return outcomes.stopped(attempt, attempt.stop_reason, ended=True)
    if command is not None:
        return command
    if visit is None or visit.death is None:
        raise RuntimeError("An attempt ended without a verdict in a process that lives.")
    if not visit.is_taken:
        return outcomes.not_started(attempt, _AGAIN)
    return outcomes.crashed(attempt, visit.death.evidence("The handler's process"))
