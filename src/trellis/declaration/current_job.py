"""The request that the running code works for, passed on to every job it creates.

A worker sets it around a handler, a client reads it at `create`; it lives in a context variable,
so it follows tasks and threads and never leaks from one job into another.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol

from trellis.core.trace_context import Context


class Ambient(Protocol):
    """The job around the running code, as far as everybody may know it."""

    @property
    def context(self) -> Context:
        """The request the job works for."""


#: The job whose handler is running; None outside any handler.
current_job: Final[ContextVar[Ambient | None]] = ContextVar("trellis_job", default=None)
