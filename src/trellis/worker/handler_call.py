"""Calling handlers: on the loop, in threads, or as a plain function for tests.

Each call has its own context, so a context variable that a handler sets is gone when it ends;
`enter` puts the job into that context. A coroutine that never waits costs one step and no task.
Threads are daemons: a handler stuck in a C call cannot keep the process from ending.
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

from trellis.core.job import (
    Fence,
    JobId,
    JobRecord,
    NewJob,
    SessionId,
    claimed_record,
    define,
    fresh_context,
)
from trellis.declaration.current_job import current_job
from trellis.declaration.job_type import JobType
from trellis.declaration.signature import Handler
from trellis.engines.values import NoteBody
from trellis.errors import ConfigurationError
from trellis.worker import forked_copies
from trellis.worker.active_job import ActiveJob, JobEnvironment
from trellis.worker.attempt import Attempt
from trellis.worker.local_type import LocalType
from trellis.worker.locks import LocalLocks
from trellis.worker.log import JobLog

#: Puts a job, represented by its log, into the current context.
enter = current_job.set


def bind(
    attempt: Attempt, payload: object, environment: JobEnvironment, log: JobLog
) -> Callable[[], Any]:
    """Return a function that calls the handler with its arguments."""
    return partial(attempt.type.function, *arguments(attempt, payload, environment, log))


def arguments(
    attempt: Attempt, payload: object, environment: JobEnvironment, log: JobLog
) -> tuple[object, ...]:
    """Return the arguments of the handler."""
    match attempt.type.takes:
        case "payload":
            return (payload,)
        case "job":
            return (ActiveJob(payload, attempt, environment, log),)
        case "nothing":
            return ()


def first_step(work: Coroutine[Any, Any, Any], log: JobLog) -> Any:  # noqa: ANN401 - what asyncio passes along
    """Enter the job and start its handler; return what it awaits, or raise `StopIteration`."""
    enter(log)
    return work.send(None)


@coroutine
def go_on(
    work: Coroutine[Any, Any, Any],
    context: Context,
    waits_for: Any,  # noqa: ANN401 - what asyncio passes along
) -> Generator[Any, Any, Any]:
    """Continue a coroutine that was started in this context, in the current task."""
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
            # The loop may be closed when a stuck handler finally returns.
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
            # Neither can be raised through an `await`: they would end the slot instead.
            failure = RuntimeError(f"The handler raised {type(error).__name__}.")
            failure.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - it ends only this attempt
            failure = error
        if os.getpid() != self._process:
            forked_copies.end(failure)
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


class _DroppedNotes:
    """Accepts notes and drops them."""

    def add(self, attempt: Attempt, body: NoteBody) -> None:
        """Drop the note."""


async def run_inline(job_type: JobType, payload: object) -> Any:  # noqa: ANN401 - the handler's
    """Validate the payload, call the handler as a function and return its result.

    For tests and experiments: there is no engine, no lease and no retry.
    """
    handler = job_type.handler
    if handler is None:
        raise ConfigurationError(
            f"{job_type!r} has no handler in this program; import the module that defines it."
        )
    text = job_type.payload.encode(payload)
    value = job_type.payload.decode(text)
    result = handler.function(*_arguments(job_type, handler, value, text))
    return await result if asyncio.iscoroutine(result) else result


def _arguments(job_type: JobType, handler: Handler, value: object, text: str) -> tuple[object, ...]:
    if handler.takes == "nothing":
        return ()
    if handler.takes == "payload":
        return (value,)
    attempt = Attempt(_record(job_type, text), Fence(SessionId(1), 1), LocalType(job_type), 0.0)
    notes = _DroppedNotes()
    return (
        ActiveJob(
            value, attempt, JobEnvironment(notes, locks=LocalLocks()), JobLog(attempt, notes)
        ),
    )


def _record(job_type: JobType, payload: str) -> JobRecord:
    new = NewJob(
        id=JobId("INLINE"),
        service=job_type.service,
        type=job_type.name,
        queue=job_type.queue,
        payload=payload,
        policy=job_type.policy,
        context=fresh_context("inline", 1, 1),
    )
    return claimed_record(
        define(new, row=0, now=0),
        session=SessionId(1),
        token=1,
        claimed_at=0,
        version=2,
        generation=0,
        attempt=1,
        claims=1,
        crashes=0,
        run_at=0,
    )
