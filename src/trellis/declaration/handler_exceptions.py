"""Exceptions by which a handler decides how its attempt ends. Any other exception is a failure.

Fail("no such order")      the job fails: no retry; data= is stored with the failure
RetryIn("5m")              try again in five minutes; the attempt counts
Snooze("5m")               try again in five minutes; the attempt does not count
Cancelled()                the job ends as cancelled, with or without a request to cancel
Stopped()                  the job is handed back at once; the attempt does not count

>>> Fail("no such order", code="not_found", data={"order": 7}).data
{'order': 7}

A handler also gets `Cancelled` and `Stopped` from `job.raise_if_cancelled`, `job.track` and
`job.lock`: `Cancelled` after a cancel, `Stopped` when only this attempt must end. If the worker has
stopped the attempt (timeout, shutdown, lost lease), the reason of the stop decides how the attempt
ends, and the handler may raise either.
"""

from __future__ import annotations

from trellis.core.durations import Duration
from trellis.declaration import checks


class HandlerException(Exception):
    """Base of the exceptions by which a handler decides about its own job."""


class Fail(HandlerException):
    """End the job as failed, even if attempts are left.

    `data` is stored with the failure, as JSON: for programs, and for people who look into it.
    """

    def __init__(self, message: str = "", *, code: str = "failed", data: object = None) -> None:
        super().__init__(message)
        #: A short stable word for programs.
        self.code = code
        #: Facts about the failure.
        self.data = data


class RetryIn(HandlerException):
    """Fail this attempt and wait this long for the next, if attempts are left."""

    def __init__(self, delay: Duration, message: str = "") -> None:
        super().__init__(message)
        #: The delay in microseconds.
        self.delay = checks.duration("delay", delay)


class Snooze(HandlerException):
    """Run the job again after this long; the attempt does not count."""

    def __init__(self, delay: Duration) -> None:
        super().__init__()
        #: The delay in microseconds.
        self.delay = checks.duration("delay", delay)


class Cancelled(HandlerException):
    """End the job as cancelled."""


class Stopped(HandlerException):
    """End this attempt only: the job is not cancelled and runs again."""


# Tracebacks name them as handlers import them.
for _each in (Cancelled, Fail, RetryIn, Snooze, Stopped):
    _each.__module__ = "trellis"
