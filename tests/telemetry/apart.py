"""A handler in a separate process, at the top of a module, where that process finds it."""

from __future__ import annotations

from opentelemetry import trace

from trellis import Service

apart = Service("apart", "sqlite:///somewhere-else.db")


@apart.job
async def child() -> None:
    """Do nothing."""


@apart.job(isolation="process")
async def parent() -> list[int]:
    """Create a job; return the trace and the span in which the handler runs."""
    await child.create()
    span = trace.get_current_span().get_span_context()
    return [span.trace_id, span.span_id]
