"""The request that the running code works for, passed on to every job it creates.

A worker sets it around a handler, a client reads it at `create`; it lives in a context variable,
so it follows tasks and threads and never leaks from one job into another.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from trellis.core.context import Context

#: The context of the job whose handler is running; None outside any handler.
current_context: Final[ContextVar[Context | None]] = ContextVar("trellis_context", default=None)
