"""The job whose handler is running: the parent of the jobs that the handler creates.

They inherit its request and trace.
A worker sets it around a handler, a client reads it at `create`. It is a context variable: tasks
and threads of the handler inherit it, and other jobs do not see it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol

from trellis.core.job import Context, JobId


class RunningJob(Protocol):
    """What a client reads of the running job."""

    @property
    def job_id(self) -> JobId:
        """The id of the job."""

    @property
    def context(self) -> Context:
        """The request and the trace of the job."""


#: The job whose handler is running; None outside any handler.
current_job: Final[ContextVar[RunningJob | None]] = ContextVar("trellis_job", default=None)
