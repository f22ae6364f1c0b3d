"""The program of a handler process; `process.py` starts it.

It lives exactly as long as its worker: the end of the line ends it whatever the handler does, and
so does the kernel where it can be told to. Signals are left to the worker.

Lifespans of services in a handler process: entered when first needed, left at the end.

Each is entered and left in one task of its own, because what it holds open (a task group, a cancel
scope) may insist on that, while every attempt has a task of its own.

Running one attempt after another in a handler process.

A handler finds what it finds in a worker: its payload checked, its `ActiveJob`, its context, the
state of its service. What it returns is encoded here, so a result that cannot be stored fails the
same way, and whatever it raises ends the attempt and not the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final

from trellis.core.commands import FencedCommand
from trellis.core.job import Fence
from trellis.declaration import worker_location
from trellis.declaration.imports import HandlerName, find_handler, find_lifespan
from trellis.declaration.worker_location import Lifespan
from trellis.errors import PayloadInvalid
from trellis.worker import outcomes
from trellis.worker.active_job import JobEnvironment
from trellis.worker.attempt import Attempt, Stop
from trellis.worker.child_process import own_peak_memory
from trellis.worker.handler_call import bind, enter
from trellis.worker.isolation import protocol
from trellis.worker.isolation.protocol import (
    BadMessage,
    Line,
    LineLocks,
    LineNotes,
    Message,
    RecordsToWorker,
    current_token,
)
from trellis.worker.local_type import LocalType
from trellis.worker.log import JobLog


class Lifespans:
    """What is set up in this process."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def enter(self, make: Lifespan) -> Any:  # noqa: ANN401 - what the program's lifespan yields
        """Set up and return the state; raise what the lifespan raises."""
        state: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._keep(make, state), name="trellis-lifespan")
        await asyncio.wait((task, state), return_when=asyncio.FIRST_COMPLETED)
        if not state.done():
            state.cancel()
            task.result()
            raise RuntimeError("The lifespan ended before it yielded.")
        self._tasks.append(task)
        return state.result()

    async def leave(self) -> None:
        """Take everything down."""
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def _keep(self, make: Lifespan, state: asyncio.Future[Any]) -> None:
        async with make() as yielded:
            state.set_result(yielded)
            await self._over.wait()


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
        self._environment = JobEnvironment(self._notes, self._states, self.locks)
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
        record = protocol.read_record(order["record"])
        fence = Fence(*order["fence"])
        self._line.say("taken", token=fence.token)
        try:
            kind = self._load(order)
        except BaseException as error:  # noqa: BLE001 - whatever a module does when it is imported
            self._tell(fence, outcomes.not_loaded(fence, error))
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
        self._line.say(
            "ended", token=fence.token, worn=self._worn, **protocol.write_verdict(command)
        )

    def _load(self, order: Message) -> LocalType:
        """Find the handler and set up what its service shares, once in this process."""
        service = order["service"]
        if order["home"] is not None:
            worker_location.tell(service, *order["home"])
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
            return outcomes.failed_permanently(attempt, error.code, str(error))
        context = copy_context()
        log = JobLog(attempt, self._notes)
        context.run(enter, log)
        context.run(current_token.set, attempt.fence.token)
        call = bind(attempt, payload, self._environment, log)
        self._line.say("begun", token=attempt.fence.token)
        try:
            if attempt.type.is_async:
                return self._runner.run(self._await(attempt, call), context=context)
            return outcomes.returned(attempt, context.run(call))
        except BaseException as error:  # noqa: BLE001 - even SystemExit ends only this attempt
            return self._raised(attempt, error)

    async def _await(
        self, attempt: Attempt, call: Callable[[], Awaitable[Any]]
    ) -> FencedCommand | None:
        self._task = asyncio.current_task()
        try:
            if attempt.stop_reason is not None and self._task is not None:
                self._task.cancel()
            return outcomes.returned(attempt, await call())
        except BaseException as error:  # noqa: BLE001 - it must not reach the loop, which it stops
            return self._raised(attempt, error)

    def _raised(self, attempt: Attempt, error: BaseException) -> FencedCommand | None:
        self._worn = isinstance(error, MemoryError) or not isinstance(error, Exception)
        return outcomes.raised(attempt, error)

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
        self._environment.stopping = True

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
            attempt.cancel_requested = True
        if attempt is not None and self._is_interrupted:
            attempt.stop_reason = Stop.LOST  # only the worker knows why, and settles by it


_PR_SET_PDEATHSIG: Final = 1


def main(file: int, worker: int, log_level: int) -> None:
    """Run what the worker orders over this file until it says goodbye."""
    _end_with(worker)
    faulthandler.enable(all_threads=False)
    _leave_signals_to_worker()
    logging.getLogger().setLevel(log_level)
    line = Line(file)
    with asyncio.Runner() as runner:
        handling = Handling(line, runner)
        orders = _Orders(runner.get_loop())
        hearing = threading.Thread(
            target=_hear, args=(line, orders, handling), name="trellis-line", daemon=True
        )
        hearing.start()
        line.say("ready", peak=own_peak_memory())
        while (order := orders.next(runner)) is not None:
            handling.run(order)
        runner.run(handling.close())


class _Orders:
    """What is to be done next: put in by the hearing thread, taken out by the main thread.

    The loop runs while the process waits, so what a lifespan keeps in the background goes on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()

    def put(self, order: Message | None) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, order)

    def next(self, runner: asyncio.Runner) -> Message | None:
        while True:
            # What an earlier handler left behind may cancel every task it finds.
            with suppress(asyncio.CancelledError):
                return runner.run(self._queue.get())


def _hear(line: Line, orders: _Orders, handling: Handling) -> None:
    """Do what the worker says; end the process when it says nothing more."""
    with suppress(BadMessage, RuntimeError):  # RuntimeError: the handler closed the loop
        while (message := line.hear()) is not None:
            match message["word"]:
                case "job":
                    handling.expect()
                    orders.put(message)
                case "asked":
                    handling.ask()
                case "stopping":
                    handling.tell_stopping()
                case "interrupt":
                    handling.interrupt()
                case "answer":
                    handling.locks.answer(message)
                case _:
                    orders.put(None)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with whatever the handler has started
    os._exit(1)


def _end_with(worker: int) -> None:
    """Ask the kernel to end this process with its worker, even if C code keeps it busy."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        os._exit(1)


def _leave_signals_to_worker() -> None:
    """Not ignored but handled by doing nothing: programs a job starts do not inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
