"""The job types of a worker process: which it runs, and how it calls and measures their handlers.

A `LocalType` measures how long its handlers took recently. The measure decides whether its jobs may
be claimed before a slot is free, so it follows the recent past and forgets the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final

from trellis.declaration.extensions import check_arounds
from trellis.declaration.imports import HandlerName, importable
from trellis.declaration.job_type import JobType
from trellis.declaration.signature import Handler, Takes
from trellis.errors import ConfigurationError
from trellis.worker.surrounding import surrounded

#: A type whose jobs recently took longer than this (in seconds) is never claimed ahead.
QUICK: Final = 0.1
_NEWEST_WEIGHT: Final = 0.1
_ENOUGH_SAMPLES: Final = 5

#: Makes a context that is entered and left in the thread of a handler.
HandlerContext = Callable[[], AbstractContextManager[object]]
_handler_contexts: Final[list[HandlerContext]] = []


class LocalType:
    """One job type that this process can run."""

    __slots__ = ("_samples", "busy", "config", "decode", "encode", "extensions", "function",
                 "handler_name", "in_process", "is_async", "job_type", "limit", "may_go_ahead",
                 "may_return_nothing", "mean", "read", "schema_version",
                 "takes")  # fmt: skip

    def __init__(self, job_type: JobType, *, in_thread: bool = True) -> None:
        """`in_thread`: a plain handler is called in a thread, inside the contexts for those."""
        handler = job_type.handler
        if handler is None:
            raise ConfigurationError(f"{job_type!r} has no handler here, so no worker can run it.")
        self.job_type = job_type
        #: What its service has added around its runs.
        self.extensions = job_type.extensions
        self.function: Callable[..., Any] = handler.function
        self.takes: Takes = handler.takes
        arounds = (*self.extensions.arounds, *job_type.arounds)
        if arounds:
            check_arounds(arounds, handler)
            self.function, self.takes = surrounded(handler, arounds), "job"
        #: Returns the present configuration, for jobs that expect a certain one.
        self.config = job_type.current_config
        if in_thread and not handler.is_async:
            self.function = in_handler_contexts(self.function)
            self.config = _config(job_type)
        self.is_async = handler.is_async
        job_type.upgrades.versions  # noqa: B018 - refuses steps with a gap
        #: Returns the validated payload of a text and its schema version, upgraded if need be.
        self.read = job_type.read
        #: The same for payloads of the present version.
        self.decode, self.schema_version = job_type.payload.decode, job_type.schema_version
        self.encode = job_type.result.encode
        #: Whether None is a valid result of the type. Most handlers return None, so this is
        #: determined once.
        self.may_return_nothing = _accepts_none(job_type)
        self.may_go_ahead = job_type.may_be_claimed_ahead
        #: Whether its handler runs in a handler process; `isolation/apart.py` changes it.
        self.in_process = job_type.isolation == "process"
        #: The name under which a handler process imports the handler; None if it cannot.
        self.handler_name = _importable_name(job_type)
        #: How many attempts of it run at a time in this process; None: as many as there are slots.
        self.limit = job_type.concurrency
        #: Attempts of this type that are claimed and whose handler has not ended.
        self.busy = 0
        #: Mean duration of its recent handlers, in seconds.
        self.mean = 0.0
        self._samples = 0

    def took(self, seconds: float) -> None:
        """Record the duration of a handler that has ended."""
        if self._samples < _ENOUGH_SAMPLES:
            self._samples += 1
            self.mean += (seconds - self.mean) / self._samples
        else:
            self.mean += (seconds - self.mean) * _NEWEST_WEIGHT

    def forget_pace(self) -> None:
        """Forget the measured durations: jobs that were claimed ahead had to wait too long."""
        self._samples = 0
        self.mean = 0.0

    @property
    def name(self) -> str:
        """The name of the type as service/type."""
        return f"{self.job_type.service}/{self.job_type.name}"

    @property
    def is_apart(self) -> bool:
        """Whether its handler runs in handler processes only for a while, after a crash."""
        return self.in_process and self.job_type.isolation != "process"

    @property
    def is_quick(self) -> bool:
        """Whether its recent jobs ended within a tenth of a second."""
        return self.may_go_ahead and self._samples >= _ENOUGH_SAMPLES and self.mean < QUICK

    def capacity(self, slots: int) -> int:
        """Return how many more attempts of this type its own limit allows."""
        limit = self.limit
        return slots if limit is None else max(0, min(limit, slots) - self.busy)


def _config(job_type: JobType) -> Handler | None:
    config = job_type.current_config
    if config is None or config.is_async:
        return config
    return replace(config, function=in_handler_contexts(config.function))


def _accepts_none(job_type: JobType) -> bool:
    try:
        job_type.result.encode(None, "result")
    except Exception:  # noqa: BLE001 - a validator of the program may raise any exception
        return False
    return True


def _importable_name(job_type: JobType) -> HandlerName | None:
    try:
        return importable(job_type)
    except ConfigurationError:
        return None


# -- contexts around plain handlers ------------------------------------------------------------


def add_handler_context(context: HandlerContext) -> None:
    """Make workers that start from now on call plain handlers inside this context.

    It is for things that belong to a thread and outlive a call, such as the database connections of
    a framework. Coroutine handlers are called without it, because their thread is shared. Adding
    the same context twice has no effect.
    """
    if context not in _handler_contexts:
        _handler_contexts.append(context)


def in_handler_contexts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler wrapped in all contexts, the first outermost; itself without any."""
    if not _handler_contexts:
        return function
    contexts = tuple(_handler_contexts)

    @wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the handler's
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            return function(*args, **kwargs)

    return inside


# -- which types a worker runs -----------------------------------------------------------------


def choose(job_types: Sequence[JobType], types: Sequence[str]) -> list[JobType]:
    """Return the job types to run; refuse names that no job type has."""
    for wanted in types:
        if not any(_is_named(each, wanted) for each in job_types):
            raise _unknown(wanted, {each.name for each in job_types})
    return [
        each for each in job_types if not types or any(_is_named(each, wanted) for wanted in types)
    ]


def _is_named(job_type: JobType, wanted: str) -> bool:
    """Return whether this name, `send` or `billing/send`, means this type."""
    return wanted in {job_type.name, f"{job_type.service}/{job_type.name}"}


def _unknown(wanted: str, known: Iterable[str]) -> ConfigurationError:
    names = sorted(known)
    close = get_close_matches(wanted, names, 1)
    hint = f"Did you mean {close[0]}?" if close else f"It has {', '.join(names) or 'none'}."
    return ConfigurationError(f"This worker has no handler for the type {wanted!r}. {hint}")
