"""The decorator `@service.job(...)` as type checkers see it: which handlers make which `Job`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, overload

from trellis.client.job import Job
from trellis.worker.active_job import ActiveJob

P = TypeVar("P")
R = TypeVar("R")
P_contra = TypeVar("P_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)


class HandlerWithDefault(Protocol[P_contra, T_co]):
    """A handler whose payload has a default, which `create()` without a payload takes."""

    def __call__(self, payload: P_contra = ..., /) -> T_co:
        """Run a job."""


class JobDecorator(Protocol):
    """The decorator that `@service.job(...)` returns: makes a `Job` of a handler."""

    @overload
    def __call__(self, handler: Callable[[ActiveJob[P]], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, handler: HandlerWithDefault[P, Awaitable[R]], /) -> Job[P | None, R]: ...
    @overload
    def __call__(self, handler: Callable[[P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap] # coroutines with a default come before
        self, handler: Callable[[], Awaitable[R]], /
    ) -> Job[None, R]: ...
    @overload
    def __call__(self, handler: Callable[[ActiveJob[P]], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, handler: HandlerWithDefault[P, R], /) -> Job[P | None, R]: ...
    @overload
    def __call__(self, handler: Callable[[P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[], R], /) -> Job[None, R]: ...
