"""Functions that a service adds around the runs of its jobs: surroundings and error reporters.

A surrounding is a generator function that yields once: what is before the `yield` runs before the
handler, what is behind it afterwards. It observes: it can raise, but it cannot replace the result
of a handler nor turn its failure into a success.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from trellis.declaration.signature import Handler
from trellis.errors import ConfigurationError

#: What `@service.around` decorates; it takes the `ActiveJob`.
AroundFunction = Callable[[Any], Iterator[None] | AsyncIterator[None]]
#: What `@service.on_error` decorates; it takes the `AttemptFailure`.
ErrorReporter = Callable[[Any], Awaitable[None] | None]
#: What `@service.archive` decorates; it takes a list of `ArchivedJob`.
ArchiveFunction = Callable[[Any], Awaitable[None] | None]
AroundT = TypeVar("AroundT", bound=AroundFunction)
ReporterT = TypeVar("ReporterT", bound=ErrorReporter)
ArchiveT = TypeVar("ArchiveT", bound=ArchiveFunction)


class Around(NamedTuple):
    """A surrounding."""

    function: Callable[..., Any]
    is_async: bool

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.function, "__qualname__", self.function))


class Archiver(NamedTuple):
    """Archives the expired jobs of a service."""

    function: ArchiveFunction
    #: Whether it gets secrets as they are.
    secrets: bool


@dataclass(slots=True)
class Extensions:
    """What one service has added; its job types share it."""

    arounds: list[Around] = field(default_factory=list)
    reporters: list[ErrorReporter] = field(default_factory=list)
    archiver: Archiver | None = None


def read_around(function: AroundFunction) -> Around:
    """Return the surrounding of a function; raise `ConfigurationError` if it cannot be one."""
    is_async = inspect.isasyncgenfunction(function)
    name = getattr(function, "__qualname__", repr(function))
    if not is_async and not inspect.isgeneratorfunction(function):
        raise ConfigurationError(
            f"{name} does not yield, so it cannot surround handlers. Write it as a generator: what "
            "runs before the handler, then yield, then what runs after it."
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"{name} must take one argument, the job: def {name}(job: ActiveJob[Any])."
        ) from error
    return Around(function, is_async)


def check_arounds(arounds: Sequence[Around], handler: Handler | None) -> None:
    """Raise `ConfigurationError` for an asynchronous surrounding of a plain handler."""
    if handler is None or handler.is_async:
        return
    for around in arounds:
        if around.is_async:
            raise ConfigurationError(
                f"{around.name} is asynchronous, but the handler {handler.name} is a plain "
                "function and runs in a thread, where nothing can be awaited. Write "
                f"{around.name} as a plain generator, give it to single types with around=, or "
                f"write {handler.name} as a coroutine."
            )


class Extensible:
    """The part of a service by which a program adds to the runs of its jobs."""

    name: str

    def __init__(self) -> None:
        self._extensions = Extensions()

    def _handlers(self) -> list[Handler | None]:
        raise NotImplementedError

    def around(self, function: AroundT) -> AroundT:
        """Surround every call of a handler of this service by a generator that yields once.

        It takes the `ActiveJob`, runs where the handler runs, and sees what the handler raises at
        its `yield`. It may raise, but it cannot replace a result or take back a failure. The first
        one declared is the outermost.
        """
        around = read_around(function)
        for handler in self._handlers():
            check_arounds([around], handler)
        self._extensions.arounds.append(around)
        return function

    def on_error(self, reporter: ReporterT) -> ReporterT:
        """Call this function with an `AttemptFailure` for each failed attempt.

        It is called once the outcome is stored and cannot change it; what it raises is logged. A
        plain function is called in a thread.
        """
        self._extensions.reporters.append(reporter)
        return reporter

    def archive(self, function: ArchiveT, *, secrets: bool = False) -> ArchiveT:
        """Give jobs that retention removes to this function first, in pages of `ArchivedJob`.

        Each job comes at least once, and only what the function has taken without an exception is
        removed. A worker of the service calls it, a plain function in a thread. Secrets are masked
        unless `secrets` is true. From now on the service archives; `trellis archive off` ends it.
        """
        if self._extensions.archiver is not None:
            raise ConfigurationError(
                f"Service {self.name!r} already has an archiver. Let one function call both."
            )
        if not callable(function):
            raise ConfigurationError(f"{function!r} is not a function, so it cannot archive jobs.")
        self._extensions.archiver = Archiver(function, secrets)
        return function
