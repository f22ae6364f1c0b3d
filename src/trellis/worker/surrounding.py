"""Calling a handler inside the surroundings of its service and type.

They run where the handler runs: on the loop, in its thread, or in its process, and in its context,
so it sees the context variables they set. The first one declared is the outermost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from trellis.declaration.extensions import Around
from trellis.declaration.signature import Handler, Takes

if TYPE_CHECKING:
    from trellis.worker.active_job import ActiveJob


def surrounded(handler: Handler, arounds: Sequence[Around]) -> Callable[[ActiveJob[Any]], Any]:
    """Return a function of the job that calls the handler inside these surroundings."""
    function, takes = handler.function, handler.takes
    if handler.is_async:

        @wraps(function)
        async def inside_async(job: ActiveJob[Any]) -> Any:  # noqa: ANN401 - the handler's
            failure: BaseException | None = None
            async with AsyncExitStack() as stack:
                try:
                    for around in arounds:
                        if around.is_async:
                            await stack.enter_async_context(
                                asynccontextmanager(around.function)(job)
                            )
                        else:
                            stack.enter_context(contextmanager(around.function)(job))
                    return await function(*_arguments(takes, job))
                except BaseException as error:
                    failure = error
                    raise
            raise _kept(failure)

        return inside_async

    @wraps(function)
    def inside(job: ActiveJob[Any]) -> Any:  # noqa: ANN401 - the handler's
        failure: BaseException | None = None
        with ExitStack() as stack:
            try:
                for around in arounds:
                    stack.enter_context(contextmanager(around.function)(job))
                return function(*_arguments(takes, job))
            except BaseException as error:
                failure = error
                raise
        raise _kept(failure)

    return inside


def _kept(failure: BaseException | None) -> BaseException:
    """Return the exception that a surrounding has caught and not raised again: it stays."""
    return failure or RuntimeError("A surrounding of the handler ended the call.")


def _arguments(takes: Takes, job: ActiveJob[Any]) -> tuple[object, ...]:
    match takes:
        case "payload":
            return (job.payload,)
        case "job":
            return (job,)
        case "nothing":
            return ()
