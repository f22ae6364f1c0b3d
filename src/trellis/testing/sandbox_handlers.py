"""Handlers as a sandbox calls them: as they are, but every exception is kept, and some are planned.

The worker runtime gets a copy of each job type whose handler is wrapped; the program's own job
types are never touched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from trellis.contract.declaration import JobType
from trellis.contract.signature import Takes
from trellis.errors import ConfigurationError
from trellis.testing.sandbox_thread import CallersThread
from trellis.worker.active import ActiveJob

Error: TypeAlias = BaseException | type[BaseException]


class Raised(NamedTuple):
    """What an attempt's handler raised."""

    error: BaseException
    planned: bool


class Handlers:
    """What a sandbox knows about its handlers: failures to come, and failures seen."""

    def __init__(self) -> None:
        self._planned: dict[tuple[str, str], deque[Error]] = {}
        self._raised: dict[tuple[str, int], Raised] = {}

    def plan(self, job_type: JobType, error: Error, times: int) -> None:
        """Make the next attempts of this type raise instead of calling their handler."""
        place = (job_type.service, job_type.name)
        self._planned.setdefault(place, deque()).extend([error] * times)

    def seen(self, job_id: str, attempt: int) -> Raised | None:
        """Return what this attempt raised, once."""
        return self._raised.pop((job_id, attempt), None)

    def watched(self, job_type: JobType, thread: CallersThread | None) -> JobType:
        """Return a copy of the type whose handler we call; a plain one in this thread, if given."""
        handler = job_type.handler
        if handler is None:
            raise ConfigurationError(f"{job_type!r} has no handler here.")
        watched = copy(job_type)
        # A process of its own would see neither this engine nor what the test has replaced.
        watched.isolation = "auto"
        is_async = handler.is_async or thread is not None
        function: Callable[..., Any] = partial(self._call, job_type)
        if handler.is_async:
            function = partial(self._call_async, job_type)
        elif thread is not None:
            function = partial(_lend, thread, function)
        watched.handler = replace(handler, function=function, takes="job", is_async=is_async)
        return watched

    async def _call_async(self, job_type: JobType, job: ActiveJob[Any]) -> Any:  # noqa: ANN401
        with _Watch(self, job_type, job) as (function, arguments):
            return await function(*arguments)

    def _call(self, job_type: JobType, job: ActiveJob[Any]) -> Any:  # noqa: ANN401 - its result
        with _Watch(self, job_type, job) as (function, arguments):
            return function(*arguments)

    def next_planned(self, job_type: JobType) -> BaseException | None:
        """Take the next planned failure of this type, if there is one."""
        planned = self._planned.get((job_type.service, job_type.name))
        if not planned:
            return None
        error = planned.popleft()
        return error() if isinstance(error, type) else error.with_traceback(None)

    def note(self, job: ActiveJob[Any], error: BaseException, *, planned: bool) -> None:
        """Keep what an attempt raised until it is settled."""
        self._raised[job.id, job.attempt] = Raised(error, planned)


class _Watch:
    """Around one call of a handler; a class, because it must not add frames to the traceback."""

    def __init__(self, handlers: Handlers, job_type: JobType, job: ActiveJob[Any]) -> None:
        self._handlers = handlers
        self._job_type = job_type
        self._job = job

    def __enter__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        handler = self._job_type.handler
        if handler is None:
            raise ConfigurationError(f"{self._job_type!r} has no handler here.")
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


async def _lend(thread: CallersThread, call: Callable[..., Any], job: ActiveJob[Any]) -> Any:  # noqa: ANN401
    return await thread.call(partial(call, job))
