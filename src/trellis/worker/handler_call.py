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
from contextvars import Context, copy_context
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
from trellis.declaration.fingerprint import config_text
from trellis.declaration.job_type import JobType
from trellis.declaration.signature import Takes
from trellis.engines.values import NoteBody
from trellis.errors import ConfigurationError
from trellis.portal import portal
from trellis.worker import forked_copies
from trellis.worker.active_job import ActiveJob, JobEnvironment
from trellis.worker.attempt import Attempt
from trellis.worker.local_type import LocalType
from trellis.worker.locks import LocalLocks
from trellis.worker.log import JobLog
from trellis.worker.precondition import checked, checked_async, uncheckable

#: Puts a job, represented by its log, into the current context.
enter = current_job.set


def bind(
    attempt: Attempt, payload: object, environment: JobEnvironment, log: JobLog
) -> Callable[[], Any]:
    """Return a function that calls the handler, after the check of what the job expects."""
    local_type, definition = attempt.type, attempt.record.definition
    call = partial(
        local_type.function, *arguments(local_type.takes, attempt, payload, environment, log)
    )
    if definition.expect is None:
        return call
    config = local_type.config
    if config is None:
        raise uncheckable(definition)
    read = partial(config.function, *arguments(config.takes, attempt, payload, environment, log))
    if local_type.is_async:
        return partial(checked_async, definition, read, call, in_thread=not config.is_async)
    return partial(checked, definition, read, call)


def arguments(
    takes: Takes, attempt: Attempt, payload: object, environment: JobEnvironment, log: JobLog
) -> tuple[object, ...]:
    """Return the arguments of a handler, or of a config function."""
    match takes:
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


async def run_inline(job_type: JobType, payload: object, config: object, expect: str | None) -> Any:  # noqa: ANN401 - the handler's
    """Validate the payload, call the handler as a function and return its result.

    For tests and experiments: there is no engine, no lease and no retry. A plain handler is called
    in a thread, where it may block and use what refuses to run beside an event loop.
    """
    local_type = _local_type(job_type)
    call = _inline_call(local_type, payload, config, expect)
    if local_type.is_async:
        return await call()
    threads = HandlerThreads(1)
    try:
        return await threads.call(call, copy_context())
    finally:
        threads.close()


def run_inline_sync(job_type: JobType, payload: object, config: object, expect: str | None) -> Any:  # noqa: ANN401 - the handler's
    """Do what `run_inline` does, for plain code: a plain handler is called in this thread."""
    # The contexts around plain functions are for the threads of a worker.
    local_type = _local_type(job_type, in_thread=False)
    call = _inline_call(local_type, payload, config, expect)
    return portal.call(call) if local_type.is_async else call()


def _local_type(job_type: JobType, *, in_thread: bool = True) -> LocalType:
    if job_type.handler is None:
        raise ConfigurationError(
            f"{job_type!r} has no handler in this program; import the module that defines it."
        )
    return LocalType(job_type, in_thread=in_thread)


def _inline_call(
    local_type: LocalType, payload: object, config: object, expect: str | None
) -> Callable[[], Any]:
    text = local_type.job_type.payload.encode(payload)
    value = local_type.job_type.payload.decode(text)
    snapshot = None if config is None else config_text(config)
    record = _record(local_type.job_type, text, snapshot, expect)
    attempt, notes = Attempt(record, Fence(SessionId(1), 1), local_type, 0.0), _DroppedNotes()
    environment = JobEnvironment(notes, locks=LocalLocks())
    return bind(attempt, value, environment, JobLog(attempt, notes))


def _record(job_type: JobType, payload: str, config: str | None, expect: str | None) -> JobRecord:
    new = NewJob(
        id=JobId("INLINE"),
        service=job_type.service,
        type=job_type.name,
        queue=job_type.queue,
        payload=payload,
        policy=job_type.policy,
        context=fresh_context("inline", 1, 1),
        config=config,
        expect=expect,
        schema_version=job_type.schema_version,
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
