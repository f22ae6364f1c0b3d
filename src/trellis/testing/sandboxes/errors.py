"""What a sandbox raises: each tells what a test left undone, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.errors import TrellisError


class SandboxError(TrellisError):
    """A sandbox could not do what the test asked."""

    code = "sandbox"


class HandlerFailed(SandboxError):
    """An attempt failed, and the test had not planned it. Its cause is what the handler raised."""

    code = "handler_failed"

    def __init__(self, message: str, failures: Sequence[str] = ()) -> None:
        super().__init__(message)
        #: Every unplanned failure of the run, in words, in the order they happened.
        self.failures = tuple(failures)


class HandlerMissing(SandboxError):
    """A due job has no handler in this program."""

    code = "handler_missing"


class SandboxStuck(SandboxError):
    """The jobs of a sandbox did not come to an end."""

    code = "sandbox_stuck"


class JobsLeft(SandboxError, AssertionError):
    """Jobs wait or run although the test says that none should."""

    code = "jobs_left"
