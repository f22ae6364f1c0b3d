"""The exceptions of a sandbox; each message names what the test should do."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.errors import TrellisError


class SandboxError(TrellisError):
    """A sandbox could not do what the test asked."""

    code = "sandbox"


class HandlerFailed(SandboxError):
    """An attempt failed that the test did not plan. Its cause is the exception of the handler."""

    code = "handler_failed"

    def __init__(self, message: str, failures: Sequence[str] = ()) -> None:
        super().__init__(message)
        #: A sentence about each unplanned failure of the run, in order.
        self.failures = tuple(failures)


class HandlerMissing(SandboxError):
    """A due job has no handler in this program."""

    code = "handler_missing"


class SandboxStuck(SandboxError):
    """The jobs of a sandbox did not end in time."""

    code = "sandbox_stuck"


class JobsLeft(SandboxError, AssertionError):
    """Jobs wait or run where the test expects none."""

    code = "jobs_left"
