"""A job type as this worker process sees it: how to call its handler and how fast it has been.

What was lately seen decides whether its jobs may be claimed before a slot is free, so the measure
follows the recent past and forgets the rest.

Which of a program's job types a worker runs: all, or those of the types and queues it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final

from trellis.declaration.imports import HandlerName, importable
from trellis.declaration.job_type import JobType
from trellis.declaration.signature import Takes
from trellis.errors import ConfigurationError
from trellis.worker.handler_context import in_handler_contexts

#: A type whose jobs lately took longer than this is never claimed ahead.
QUICK: Final = 0.1
_WEIGHT: Final = 0.1
_ENOUGH: Final = 5


class LocalType:
    """One job type that this process can run."""

    __slots__ = (
        "_samples",
        "busy",
        "decode",
        "encode",
        "function",
        "handler_name",
        "in_process",
        "is_async",
        "job_type",
        "may_go_ahead",
        "may_return_nothing",
        "mean",
        "takes",
    )  # fmt: skip

    def __init__(self, job_type: JobType) -> None:
        handler = job_type.handler
        if handler is None:
            raise ConfigurationError(f"{job_type!r} has no handler here, so no worker can run it.")
        self.job_type = job_type
        self.function: Callable[..., Any] = (
            handler.function if handler.is_async else in_handler_contexts(handler.function)
        )
        self.takes: Takes = handler.takes
        self.is_async = handler.is_async
        self.decode = job_type.payload.decode
        self.encode = job_type.result.encode
        #: Whether None is a result of its type; most handlers return it, so it is asked once.
        self.may_return_nothing = _fits_none(job_type)
        self.may_go_ahead = job_type.may_be_claimed_ahead
        #: Whether its handler runs in a process of its own.
        self.in_process = job_type.isolation == "process"
        #: The name under which another process finds its handler; None if none can.
        self.handler_name = _name_of(job_type)
        #: Attempts of this type that are claimed and whose handler has not ended.
        self.busy = 0
        #: Seconds a handler lately took.
        self.mean = 0.0
        self._samples = 0

    def took(self, seconds: float) -> None:
        """Learn from one handler that has ended."""
        if self._samples < _ENOUGH:
            self._samples += 1
            self.mean += (seconds - self.mean) / self._samples
        else:
            self.mean += (seconds - self.mean) * _WEIGHT

    def forget_pace(self) -> None:
        """Forget how quick it was: its jobs were claimed ahead and waited in vain."""
        self._samples = 0
        self.mean = 0.0

    @property
    def is_quick(self) -> bool:
        """Whether it has lately shown that its jobs end within a tenth of a second."""
        return self.may_go_ahead and self._samples >= _ENOUGH and self.mean < QUICK

    def room(self, slots: int) -> int:
        """Return how many more attempts of this type may be claimed, its own limit considered."""
        limit = self.job_type.concurrency
        return slots if limit is None else max(0, min(limit, slots) - self.busy)


def _fits_none(job_type: JobType) -> bool:
    try:
        job_type.result.encode(None, "result")
    except Exception:  # noqa: BLE001 - a validator of the program's own may raise anything
        return False
    return True


def _name_of(job_type: JobType) -> HandlerName | None:
    try:
        return importable(job_type)
    except ConfigurationError:
        return None


def choose(
    job_types: Sequence[JobType], types: Sequence[str], queues: Sequence[str]
) -> list[JobType]:
    """Return the types to work on; refuse a name that nothing here has."""
    for wanted in types:
        if not any(_is_named(each, wanted) for each in job_types):
            raise _unknown("type", wanted, {each.name for each in job_types})
    for wanted in queues:
        if all(each.queue != wanted for each in job_types):
            raise _unknown("queue", wanted, {each.queue for each in job_types})
    chosen = [
        each
        for each in job_types
        if (not types or any(_is_named(each, wanted) for wanted in types))
        and (not queues or each.queue in queues)
    ]
    if job_types and not chosen:
        raise ConfigurationError(
            f"No job type is both one of {', '.join(types)} and in one of {', '.join(queues)}: "
            "this worker would run nothing. Leave out --types or --queues."
        )
    return chosen


def _is_named(job_type: JobType, wanted: str) -> bool:
    """Tell whether this is the type meant: `send`, or `billing/send` among several services."""
    return wanted in {job_type.name, f"{job_type.service}/{job_type.name}"}


def _unknown(what: str, wanted: str, known: Iterable[str]) -> ConfigurationError:
    names = sorted(known)
    close = get_close_matches(wanted, names, 1)
    hint = f"Did you mean {close[0]}?" if close else f"It has {', '.join(names) or 'none'}."
    return ConfigurationError(f"This worker has no handler for the {what} {wanted!r}. {hint}")
