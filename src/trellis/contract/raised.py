"""What a handler may raise to say how its attempt ends. Anything else it raises is a failure.

Fail("no such order")      this job cannot work: no retry
RetryIn("5m")              try again in five minutes; the attempt counts
Snooze("5m")               try again in five minutes; the attempt does not count
Cancelled()                the job is given up, asked for or not
"""

from __future__ import annotations

from trellis.contract import given
from trellis.core.spans import Span


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

    def __init__(self, delay: Span, message: str = "") -> None:
        super().__init__(message)
        #: The wait in microseconds.
        self.delay = given.span("delay", delay)


class Snooze(Verdict):
    """Come back after this long, without counting the attempt."""

    def __init__(self, delay: Span) -> None:
        super().__init__()
        #: The wait in microseconds.
        self.delay = given.span("delay", delay)


class Cancelled(Verdict):
    """Give the job up: it ends as cancelled."""
