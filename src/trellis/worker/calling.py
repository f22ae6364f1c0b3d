"""Calling handlers: on the loop without a task of their own, or in threads of our own.

Each call runs in a context of its own, so what a handler sets in a context variable is gone when
it ends; `enter` puts the job into that context. A handler that never waits costs
no more than one step. Threads are daemons: a handler stuck in a C call cannot keep the process
from ending.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from types import coroutine
from typing import Any

from trellis.contract.ambient import current_job
from trellis.worker import copies
from trellis.worker.active import ActiveJob, Surroundings
from trellis.worker.attempt import Attempt
from trellis.worker.log import JobLog

#: Puts a job, for which its log stands, into the current context.
enter = current_job.set


def bind(
    attempt: Attempt, payload: object, surroundings: Surroundings, log: JobLog
) -> Callable[[], Any]:
    """Return the call of the handler with what it takes."""
    return partial(attempt.type.function, *arguments(attempt, payload, surroundings, log))


def arguments(
    attempt: Attempt, payload: object, surroundings: Surroundings, log: JobLog
) -> tuple[object, ...]:
    """Return what the handler takes."""
    match attempt.type.takes:
        case "payload":
            return (payload,)
        case "job":
            return (ActiveJob(payload, attempt, surroundings, log),)
        case "nothing":
            return ()


def first_step(work: Coroutine[Any, Any, Any], log: JobLog) -> Any:  # noqa: ANN401 - what asyncio passes along
    """Enter the job and begin its handler; return what it waits for, or raise `StopIteration`."""
    enter(log)
    return work.send(None)


@coroutine
def go_on(
    work: Coroutine[Any, Any, Any],
    context: Context,
    waits_for: Any,  # noqa: ANN401 - what asyncio passes along
) -> Generator[Any, Any, Any]:
    """Await a coroutine that has begun inside this context, in the task that awaits us."""
    step: Callable[[], Any]
    while True:
        try:
            answer = yield waits_for
        except BaseException as error:  # noqa: BLE001 - passed on into the handler
            step = partial(work.throw, error)
        else:
            step = partial(work.send, answer)
        try:
            waits_for = context.run(step)
        except StopIteration as end:
            return end.value


class HandlerThreads:
    """Threads for handlers that are plain functions; started when needed, at most `size`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    def call(self, function: Callable[[], Any], context: Context) -> asyncio.Future[Any]:
        """Start the function in a thread; the future ends when it does."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        if self._busy > self._threads and self._threads < self._size:
            self._threads += 1
            name = f"trellis-handler-{self._threads}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        self._work.put(partial(self._perform, future, function, context))
        return future

    def close(self) -> None:
        """Let every thread end once it is free."""
        for _ in range(self._threads):
            self._work.put(None)
        self._threads = 0

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            # The loop may be gone when a stuck handler returns at last; then nobody listens.
            with suppress(RuntimeError):
                work()

    def _perform(
        self, future: asyncio.Future[Any], function: Callable[[], Any], context: Context
    ) -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = context.run(function)
        except (StopIteration, GeneratorExit) as error:
            # Neither can travel through an `await`: they would end the slot instead.
            failure = RuntimeError(f"The handler raised {type(error).__name__}.")
            failure.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends only this attempt
            failure = error
        if os.getpid() != self._process:
            copies.end(failure)
        self._loop.call_soon_threadsafe(self._deliver, future, result, failure)

    def _deliver(
        self, future: asyncio.Future[Any], result: object, failure: BaseException | None
    ) -> None:
        self._busy -= 1
        if future.done():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)
