"""How a sandbox calls handlers: exceptions are recorded, and a test may plan failures.

The worker gets a copy of each job type with a wrapped handler; the job types of the program do not
change. `run_all` raises for every failure that was not planned. A handler that raised `RetryIn` has
not failed until its attempts are used up.

`run_all_sync` runs plain handlers in the thread of the test (`CallersThread`). They see the data of
that thread, such as an open transaction of Django, and a debugger that stops in one can use the
terminal.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from copy import copy
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from trellis.core.states import State
from trellis.declaration.handler_exceptions import RetryIn
from trellis.declaration.job_type import JobType
from trellis.declaration.signature import Handler, Takes
from trellis.errors import ConfigurationError
from trellis.testing.sandboxes.engine import FailedAttempt
from trellis.testing.sandboxes.errors import HandlerFailed
from trellis.worker.active_job import ActiveJob

T = TypeVar("T")


class CallersThread:
    """The thread that waits for a run; it makes the calls of the run while it waits."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def wait_for(self, work: Callable[[], T]) -> T:
        """Do the work in another thread; make its calls in this thread; return its result."""
        result = _Result[T]()
        context = copy_context()
        threading.Thread(
            target=lambda: context.run(self._do, work, result), name="trellis-sandbox", daemon=True
        ).start()
        while (call := self._calls.get()) is not None:
            call()
        return result.get()

    def _do(self, work: Callable[[], T], result: _Result[T]) -> None:
        try:
            result.value.append(work())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            result.error = error
        finally:
            self._calls.put(None)

    async def call(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - the handler's result
        """Call the function in the thread that waits, in a copy of this context."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def deliver(result: object, error: BaseException | None) -> None:
            loop.call_soon_threadsafe(_deliver, future, result, error)

        self._calls.put(partial(_perform, function, copy_context(), deliver))
        return await future


class _Result(Generic[T]):
    def __init__(self) -> None:
        self.value: list[T] = []
        self.error: BaseException | None = None

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value[0]


def _perform(
    function: Callable[[], Any],
    context: Context,
    deliver: Callable[[object, BaseException | None], object],
) -> None:
    try:
        result = context.run(function)
    except BaseException as error:
        deliver(None, error)
        if isinstance(error, KeyboardInterrupt):
            raise  # the test run is to stop
    else:
        deliver(result, None)


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError("The handler raised StopIteration."))
    else:
        future.set_exception(error)


Error: TypeAlias = BaseException | type[BaseException]


class Raised(NamedTuple):
    """The exception of an attempt, and whether the test planned it."""

    error: BaseException
    planned: bool


class Handlers:
    """The planned failures of handlers, and the exceptions they have raised."""

    def __init__(self) -> None:
        self._planned: dict[tuple[str, str], deque[Error]] = {}
        self._raised: dict[tuple[str, int], Raised] = {}

    def plan(self, job_type: JobType, error: Error, times: int) -> None:
        """Make the next attempts of this type raise the error instead of calling the handler."""
        name = (job_type.service, job_type.name)
        self._planned.setdefault(name, deque()).extend([error] * times)

    def take_raised(self, job_id: str, attempt: int) -> Raised | None:
        """Return the exception of this attempt and forget it."""
        return self._raised.pop((job_id, attempt), None)

    def watched(self, job_type: JobType, thread: CallersThread | None) -> JobType:
        """Return a copy of the type with a wrapped handler; a plain one is called in `thread`."""
        handler = job_type.handler
        if handler is None:
            raise ConfigurationError(f"{job_type!r} has no handler in this program.")
        watched = copy(job_type)
        # A separate process would see neither this engine nor objects that the test has replaced.
        watched.isolation = "auto"
        is_async = handler.is_async or thread is not None
        function: Callable[..., Any] = partial(self._call, job_type)
        if handler.is_async:
            function = partial(self._call_async, job_type)
        elif thread is not None:
            function = partial(_call_in_thread, thread, function)
            watched.current_config = _read_in_thread(thread, job_type.current_config)
        watched.handler = replace(handler, function=function, takes="job", is_async=is_async)
        return watched

    async def _call_async(self, job_type: JobType, job: ActiveJob[Any]) -> Any:  # noqa: ANN401
        with _Watch(self, job_type, job) as (function, arguments):
            return await function(*arguments)

    def _call(self, job_type: JobType, job: ActiveJob[Any]) -> Any:  # noqa: ANN401 - its result
        with _Watch(self, job_type, job) as (function, arguments):
            return function(*arguments)

    def next_planned(self, job_type: JobType) -> BaseException | None:
        """Return and remove the next planned failure of this type, if there is one."""
        planned = self._planned.get((job_type.service, job_type.name))
        if not planned:
            return None
        error = planned.popleft()
        return error() if isinstance(error, type) else error.with_traceback(None)

    def note(self, job: ActiveJob[Any], error: BaseException, *, planned: bool) -> None:
        """Record the exception of an attempt."""
        self._raised[job.id, job.attempt] = Raised(error, planned)


class _Watch:
    """Surrounds one call of a handler; a class, because it must add no frames to the traceback."""

    def __init__(self, handlers: Handlers, job_type: JobType, job: ActiveJob[Any]) -> None:
        self._handlers = handlers
        self._job_type = job_type
        self._job = job

    def __enter__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        handler = self._job_type.handler
        if handler is None:
            raise ConfigurationError(f"{self._job_type!r} has no handler in this program.")
        error = self._handlers.next_planned(self._job_type)
        if error is not None:
            self._handlers.note(self._job, error, planned=True)
            raise error
        return handler.function, _arguments(handler.takes, self._job)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._handlers.note(self._job, error, planned=False)


def _arguments(takes: Takes, job: ActiveJob[Any]) -> tuple[object, ...]:
    match takes:
        case "nothing":
            return ()
        case "payload":
            return (job.payload,)
        case "job":
            return (job,)


async def _call_in_thread(
    thread: CallersThread, call: Callable[..., Any], job: ActiveJob[Any]
) -> Any:  # noqa: ANN401 - its result
    return await thread.call(partial(call, job))


def _read_in_thread(thread: CallersThread, config: Handler | None) -> Handler | None:
    """Return the config function of a plain handler, called in the thread of the test as well."""
    if config is None:
        return None

    async def read(*arguments: object) -> object:
        return await thread.call(partial(config.function, *arguments))

    return replace(config, function=read, is_async=True)


def unplanned(failed: Sequence[FailedAttempt], handlers: Handlers) -> HandlerFailed | None:
    """Return the error about the unplanned failures of a run; None if there are none."""
    attempts = [(each, handlers.take_raised(each.definition.id, each.attempt)) for each in failed]
    first: Raised | None = None
    texts: list[str] = []
    for attempt, raised in attempts:
        if _is_expected(attempt, raised):
            continue
        first = raised if not texts else first
        texts.append(_describe(attempt))
    if not texts:
        return None
    more = f" And {len(texts) - 1} more, see failures." if len(texts) > 1 else ""
    error = HandlerFailed(
        f"{texts[0]}{more} Plan a failure with fail_next, or ignore failures with "
        "run_all(raise_errors=False).",
        texts,
    )
    error.__cause__ = None if first is None else first.error
    return error


def _is_expected(attempt: FailedAttempt, raised: Raised | None) -> bool:
    if raised is None:
        return False
    return raised.planned or (isinstance(raised.error, RetryIn) and attempt.state is State.RETRY)


def _describe(failed: FailedAttempt) -> str:
    definition = failed.definition
    attempts = definition.policy.retry.attempts
    sentence = (
        f"Attempt {failed.attempt} of {attempts} at {definition.service}/{definition.type} "
        f"(job {definition.id}) failed: {failed.error.message}"
    )
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
