"""What a handler may raise to say how its attempt ends. Anything else it raises is a failure.

Fail("no such order")      this job cannot work: no retry
RetryIn("5m")              try again in five minutes; the attempt counts
Snooze("5m")               try again in five minutes; the attempt does not count
Cancelled()                the job ends as cancelled, whether a cancel was asked or not
Stopped()                  the job is handed back at once; the attempt does not count

A handler also gets `Cancelled` and `Stopped` from `job.raise_if_cancelled`, `job.track` and
`job.lock`: `Cancelled` after a cancel, `Stopped` when only this attempt must end. If the worker has
stopped the attempt (timeout, shutdown, lost lease), the reason of the stop decides how the attempt
ends, whichever of the two the handler raises.
"""

from __future__ import annotations

from trellis.core.durations import Duration
from trellis.declaration import checks


class Verdict(Exception):
    """Base of the exceptions by which a handler decides about its own job."""


class Fail(Verdict):
    """End the job as failed, whatever attempts are left."""

    def __init__(self, message: str = "", *, code: str = "failed") -> None:
        super().__init__(message)
        #: A short stable word that programs may compare.
        self.code = code


class RetryIn(Verdict):
    """Fail this attempt and wait this long for the next, if one is left."""

    def __init__(self, delay: Duration, message: str = "") -> None:
        super().__init__(message)
        #: The wait in microseconds.
        self.delay = checks.duration("delay", delay)


class Snooze(Verdict):
    """Come back after this long, without counting the attempt."""

    def __init__(self, delay: Duration) -> None:
        super().__init__()
        #: The wait in microseconds.
        self.delay = checks.duration("delay", delay)


class Cancelled(Verdict):
    """Give the job up: it ends as cancelled."""


class Stopped(Verdict):
    """End this attempt only: the job is not cancelled and runs again."""
