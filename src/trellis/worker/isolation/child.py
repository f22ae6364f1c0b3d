"""The program of a handler process, which `pool.py` starts.

It runs one attempt after another. A handler gets what it gets in a worker: its validated payload,
its `ActiveJob`, its context and the state of its service. Its result is encoded here, so a result
that cannot be stored fails in the same way, and an exception ends the attempt and not the process.

The process ends with its worker: when the channel is closed and, on Linux, by a signal of the
kernel. SIGINT and SIGTERM are left to the worker.
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
from importlib import import_module
from typing import Any, Final

from trellis import telemetry
from trellis.core.commands import FencedCommand
from trellis.core.job import Fence
from trellis.declaration import worker_location
from trellis.declaration.imports import HandlerName, find_handler, find_lifespan
from trellis.declaration.worker_location import Lifespan
from trellis.engines.values import Item
from trellis.errors import PayloadInvalid
from trellis.worker import outcomes
from trellis.worker.active_job import JobEnvironment
from trellis.worker.attempt import Attempt, Stop
from trellis.worker.child_process import own_peak_memory
from trellis.worker.handler_call import bind, enter
from trellis.worker.isolation import protocol
from trellis.worker.isolation.protocol import BadMessage, Message
from trellis.worker.isolation.worker_channel import (
    ChannelLocks,
    ChannelNotes,
    LogForwarder,
    WorkerChannel,
    current_token,
)
from trellis.worker.local_type import LocalType
from trellis.worker.log import JobLog
from trellis.worker.session import Lease

_PR_SET_PDEATHSIG: Final = 1


def main(file: int, worker_pid: int, log_level: int) -> None:
    """Run the jobs that the worker sends over this file until it sends `exit`."""
    _end_with_worker(worker_pid)
    faulthandler.enable(all_threads=False)
    _leave_signals_to_worker()
    logging.getLogger().setLevel(log_level)
    channel = WorkerChannel(file)
    with asyncio.Runner() as runner:
        handlers = HandlerRunner(channel, runner)
        jobs = _JobQueue(runner.get_loop())
        receiver = threading.Thread(
            target=_receive, args=(channel, jobs, handlers), name="trellis-messages", daemon=True
        )
        receiver.start()
        channel.send("ready", peak_memory=own_peak_memory())
        while (job := jobs.next(runner)) is not None:
            handlers.run(job)
        runner.run(handlers.close())


def _end_with_worker(worker_pid: int) -> None:
    """Have the kernel kill this process when its worker ends, even while C code runs."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker_pid:
        os._exit(1)


def _leave_signals_to_worker() -> None:
    """Handle signals by doing nothing; programs a job starts would inherit ignored signals."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


class _JobQueue:
    """The `job` messages, from the thread that receives them to the main thread.

    The loop runs while the main thread waits, so background tasks of a lifespan continue.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()

    def put(self, job: Message | None) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, job)

    def next(self, runner: asyncio.Runner) -> Message | None:
        while True:
            # A task that an earlier handler has left running may cancel every task it finds.
            with suppress(asyncio.CancelledError):
                return runner.run(self._queue.get())


def _receive(channel: WorkerChannel, jobs: _JobQueue, handlers: HandlerRunner) -> None:
    """Handle the messages of the worker; at their end, end the process."""
    with suppress(BadMessage, RuntimeError):  # RuntimeError: the handler closed the loop
        while (message := channel.receive()) is not None:
            match message["message"]:
                case "job":
                    handlers.reset_requests()
                    handlers.note_lease(message)
                    jobs.put(message)
                case "renewed":
                    handlers.note_lease(message)
                case "cancel_requested":
                    handlers.request_cancel()
                case "stopping":
                    handlers.note_stopping()
                case "interrupt":
                    handlers.interrupt()
                case "lock_reply":
                    handlers.locks.resolve(message)
                case _:
                    jobs.put(None)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)  # including the programs that the handler has started
    os._exit(1)


class HandlerRunner:
    """Runs the attempts of one handler process."""

    def __init__(self, channel: WorkerChannel, runner: asyncio.Runner) -> None:
        self._channel = channel
        self._runner = runner
        self._notes = ChannelNotes(channel)
        self._log = LogForwarder(channel)
        self._log.replace_root_handlers()
        self._states: dict[str, Any] = {}
        self.locks = ChannelLocks(channel)
        self._lease: Lease | None = None
        self._environment = JobEnvironment(
            self._notes, self._states, self.locks, read_lease=lambda: self._lease
        )
        self._lifespans = Lifespans()
        self._pid = os.getpid()
        self._attempt: Attempt | None = None
        self._task: asyncio.Task[Any] | None = None
        #: Requests for the current job; they may arrive before its handler is loaded.
        self._cancel_requested = self._interrupt_requested = False
        #: Whether something happened that should not affect the next attempt.
        self._discard_process = False

    # -- on the main thread --------------------------------------------------------------------

    def run(self, job: Message) -> None:
        """Run the attempt in a `job` message and send its outcome."""
        record = protocol.decode_record(job["record"])
        fence = Fence(*job["fence"])
        self._channel.send("accepted", token=fence.token)
        try:
            local_type = self._load(job)
        except BaseException as error:  # noqa: BLE001 - importing a module may raise anything
            self._send_outcome(fence, outcomes.not_loaded(fence, error))
            return
        attempt = self._attempt = Attempt(record, fence, local_type, 0.0)
        attempt.earlier_items = tuple(Item(*each) for each in job["items"])
        self._apply_requests()
        command = self._call(attempt)
        self._attempt = self._task = None
        self._send_outcome(fence, command)

    async def close(self) -> None:
        """Leave the lifespans."""
        await self._lifespans.close()

    def _send_outcome(self, fence: Fence, command: FencedCommand | None) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked, and this is the child
        self._notes.send_all()
        self._channel.send(
            "outcome",
            token=fence.token,
            discard_process=self._discard_process,
            **protocol.encode_outcome(command),
        )

    def _load(self, job: Message) -> LocalType:
        """Import the handler and enter the lifespan of its service, once per process."""
        service = job["service"]
        if job["home"] is not None:
            worker_location.set_location(service, *job["home"])
        for module in job["modules"]:
            import_module(module)
        local_type = LocalType(find_handler(HandlerName(*job["handler"])))
        self._log.replace_root_handlers()
        if local_type.job_type.reach is not None:
            self._environment.reach[service] = local_type.job_type.reach
        if job["lifespan"] is not None and service not in self._states:
            make = find_lifespan(HandlerName(*job["lifespan"]))
            self._states[service] = self._runner.run(self._lifespans.enter(make))
        return local_type

    def _call(self, attempt: Attempt) -> FencedCommand | None:
        definition = attempt.record.definition
        try:
            payload = attempt.type.read(definition.payload, definition.schema_version)
        except PayloadInvalid as error:
            return outcomes.unreadable(attempt, error)
        context = copy_context()
        log = JobLog(attempt, self._notes)
        context.run(enter, log)
        tracing = telemetry.current.tracing
        if tracing is not None:
            context.run(tracing.enter, definition.context)
        context.run(current_token.set, attempt.fence.token)
        self._channel.send("started", token=attempt.fence.token)
        try:
            call = bind(attempt, payload, self._environment, log)
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
        except BaseException as error:  # noqa: BLE001 - SystemExit would stop the loop
            return self._raised(attempt, error)

    def _raised(self, attempt: Attempt, error: BaseException) -> FencedCommand | None:
        self._discard_process = isinstance(error, MemoryError) or not isinstance(error, Exception)
        return outcomes.raised(attempt, error)

    # -- on the thread that receives messages --------------------------------------------------

    def reset_requests(self) -> None:
        """Forget the requests for the previous job."""
        self._cancel_requested = self._interrupt_requested = False

    def request_cancel(self) -> None:
        """Show the handler that the cancellation of its job was requested."""
        self._cancel_requested = True
        self._apply_requests()

    def note_stopping(self) -> None:
        """Show handlers that the worker is stopping."""
        self._environment.stopping = True

    def note_lease(self, message: Message) -> None:
        """Show the handler the lease of the worker."""
        self._lease = protocol.decode_lease(message["lease"])

    def interrupt(self) -> None:
        """End the handler: a coroutine is cancelled, a function has to check for it."""
        self._interrupt_requested = True
        self._apply_requests()
        task = self._task
        if task is not None:
            self._runner.get_loop().call_soon_threadsafe(task.cancel)

    def _apply_requests(self) -> None:
        attempt = self._attempt
        if attempt is not None and self._cancel_requested:
            attempt.cancel_requested = True
        if attempt is not None and self._interrupt_requested:
            attempt.stop_reason = Stop.LOST  # the worker knows the real reason and settles by it


class Lifespans:
    """The lifespans of services in this process: entered when first needed, left at its end.

    Each is entered and left in the same task, because a task group or cancel scope in it requires
    that, and every attempt has another task.
    """

    def __init__(self) -> None:
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def enter(self, make: Lifespan) -> Any:  # noqa: ANN401 - what the lifespan yields
        """Enter a lifespan and return its state; raise what the lifespan raises."""
        state: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._hold(make, state), name="trellis-lifespan")
        await asyncio.wait((task, state), return_when=asyncio.FIRST_COMPLETED)
        if not state.done():
            state.cancel()
            task.result()
            raise RuntimeError("The lifespan ended before it yielded.")
        self._tasks.append(task)
        return state.result()

    async def close(self) -> None:
        """Leave all lifespans."""
        self._closing.set()
        await asyncio.gather(*self._tasks)

    async def _hold(self, make: Lifespan, state: asyncio.Future[Any]) -> None:
        async with make() as yielded:
            state.set_result(yielded)
            await self._closing.wait()
