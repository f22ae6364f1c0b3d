"""A job type as this worker process sees it: how to call its handler and how fast it has been.

What was lately seen decides whether its jobs may be claimed before a slot is free, so the measure
follows the recent past and forgets the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trellis.contract.declaration import JobType
from trellis.contract.importable import HandlerName, importable
from trellis.contract.signature import Takes
from trellis.errors import ConfigurationError
from trellis.worker.around import surrounded

#: A type whose jobs lately took longer than this is never claimed ahead.
QUICK: Final = 0.1
_WEIGHT: Final = 0.1
_ENOUGH: Final = 5


class LocalType:
    """One job type that this process can run."""

    __slots__ = ("_samples", "busy", "decode", "encode", "found_as", "function", "in_process",
                 "is_async", "job_type", "may_go_ahead", "may_return_nothing", "mean",
                 "takes")  # fmt: skip

    def __init__(self, job_type: JobType) -> None:
        handler = job_type.handler
        if handler is None:
            raise ConfigurationError(f"{job_type!r} has no handler here, so no worker can run it.")
        self.job_type = job_type
        self.function: Callable[..., Any] = (
            handler.function if handler.is_async else surrounded(handler.function)
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
        self.found_as = _name_of(job_type)
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

    def prove_anew(self) -> None:
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
