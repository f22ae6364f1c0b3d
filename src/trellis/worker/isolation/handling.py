"""Running one attempt after another in a handler process.

A handler finds what it finds in a worker: its payload checked, its `ActiveJob`, its context, the
state of its service. What it returns is encoded here, so a result that cannot be stored fails the
same way, and whatever it raises ends the attempt and not the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from trellis.contract import home
from trellis.contract.importable import HandlerName, find_handler, find_lifespan
from trellis.core.commands import FencedCommand
from trellis.core.job import Fence
from trellis.errors import PayloadInvalid
from trellis.worker import verdict
from trellis.worker.active import Surroundings
from trellis.worker.attempt import Attempt, Stop
from trellis.worker.calling import bind, enter
from trellis.worker.isolation import wire
from trellis.worker.isolation.asking import LineLocks
from trellis.worker.isolation.frames import Message
from trellis.worker.isolation.lifespans import Lifespans
from trellis.worker.isolation.line import Line, LineNotes, RecordsToWorker, current_token
from trellis.worker.local_type import LocalType
from trellis.worker.log import JobLog


class Handling:
    """The attempts of one handler process."""

    def __init__(self, line: Line, runner: asyncio.Runner) -> None:
        self._line = line
        self._runner = runner
        self._notes = LineNotes(line)
        self._records = RecordsToWorker(line)
        self._records.be_the_only_one()
        self._states: dict[str, Any] = {}
        #: Answers what handlers ask; on the thread that hears the worker.
        self.locks = LineLocks(line)
        self._surroundings = Surroundings(self._notes, self._states, self.locks)
        self._lifespans = Lifespans()
        self._process = os.getpid()
        self._attempt: Attempt | None = None
        self._task: asyncio.Task[Any] | None = None
        #: What was heard about the present order, maybe before its handler could be found.
        self._is_asked = self._is_interrupted = False
        #: Whether something happened that the next attempt should not be exposed to.
        self._worn = False

    # -- on the main thread --------------------------------------------------------------------

    def run(self, order: Message) -> None:
        """Run the attempt that was ordered and tell the worker how it ended."""
        record = wire.read_record(order["record"])
        fence = Fence(*order["fence"])
        self._line.say("taken", token=fence.token)
        try:
            kind = self._load(order)
        except BaseException as error:  # noqa: BLE001 - whatever a module does when it is imported
            self._tell(fence, verdict.not_loaded(fence, error))
            return
        attempt = self._attempt = Attempt(record, fence, kind, 0.0)
        self._pass_on()
        command = self._call(attempt)
        self._attempt = self._task = None
        self._tell(fence, command)

    async def close(self) -> None:
        """Take down what the lifespans set up."""
        await self._lifespans.leave()

    def _tell(self, fence: Fence, command: FencedCommand | None) -> None:
        if os.getpid() != self._process:
            os._exit(0)  # the handler forked, and this is the copy
        self._notes.send_all()
        self._line.say("ended", token=fence.token, worn=self._worn, **wire.write_verdict(command))

    def _load(self, order: Message) -> LocalType:
        """Find the handler and set up what its service shares, once in this process."""
        service = order["service"]
        if order["home"] is not None:
            home.tell(service, *order["home"])
        kind = LocalType(find_handler(HandlerName(*order["handler"])))
        self._records.be_the_only_one()
        if order["lifespan"] is not None and service not in self._states:
            make = find_lifespan(HandlerName(*order["lifespan"]))
            self._states[service] = self._runner.run(self._lifespans.enter(make))
        return kind

    def _call(self, attempt: Attempt) -> FencedCommand | None:
        definition = attempt.record.definition
        try:
            payload = attempt.type.decode(definition.payload)
        except PayloadInvalid as error:
            return verdict.failed_for_good(attempt, error.code, str(error))
        context = copy_context()
        log = JobLog(attempt, self._notes)
        context.run(enter, log)
        context.run(current_token.set, attempt.fence.token)
        call = bind(attempt, payload, self._surroundings, log)
        self._line.say("begun", token=attempt.fence.token)
        try:
            if attempt.type.is_async:
                return self._runner.run(self._await(attempt, call), context=context)
            return verdict.returned(attempt, context.run(call))
        except BaseException as error:  # noqa: BLE001 - even SystemExit ends only this attempt
            return self._raised(attempt, error)

    async def _await(
        self, attempt: Attempt, call: Callable[[], Awaitable[Any]]
    ) -> FencedCommand | None:
        self._task = asyncio.current_task()
        try:
            if attempt.stop_reason is not None and self._task is not None:
                self._task.cancel()
            return verdict.returned(attempt, await call())
        except BaseException as error:  # noqa: BLE001 - it must not reach the loop, which it stops
            return self._raised(attempt, error)

    def _raised(self, attempt: Attempt, error: BaseException) -> FencedCommand | None:
        self._worn = isinstance(error, MemoryError) or not isinstance(error, Exception)
        return verdict.raised(attempt, error)

    # -- on the thread that hears the worker ---------------------------------------------------

    def expect(self) -> None:
        """Be ready to hear about another order."""
        self._is_asked = self._is_interrupted = False

    def ask(self) -> None:
        """Pass on that somebody wants the job cancelled."""
        self._is_asked = True
        self._pass_on()

    def tell_stopping(self) -> None:
        """Pass on that the worker was told to stop."""
        self._surroundings.stopping = True

    def interrupt(self) -> None:
        """Have the handler end: a coroutine is cancelled, a function can only look."""
        self._is_interrupted = True
        self._pass_on()
        task = self._task
        if task is not None:
            self._runner.get_loop().call_soon_threadsafe(task.cancel)

    def _pass_on(self) -> None:
        attempt = self._attempt
        if attempt is not None and self._is_asked:
            attempt.asked = True
        if attempt is not None and self._is_interrupted:
            attempt.stop_reason = Stop.LOST  # only the worker knows why, and settles by it
