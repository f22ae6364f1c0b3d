"""Where a new job comes from: its id, and the request and trace it continues.

The active OpenTelemetry span comes first, then the job whose handler creates this one; without
either the job starts a trace of its own, so none is without one.
"""

from __future__ import annotations

import random

from opentelemetry import trace
from ulid import ULID

from trellis.contract.ambient import current_context
from trellis.core.context import Context, fresh_context, traceparent
from trellis.core.job import JobId

# Ids of traces are no secrets; this source costs a tenth of the system's.
_random = random.Random()  # noqa: S311


def new_job_id() -> JobId:
    """Return a fresh id; ids made later sort later, to the millisecond."""
    return JobId(str(ULID()))


def origin_context(job_id: JobId) -> Context:
    """Return the context a job created here and now belongs to."""
    span = trace.get_current_span().get_span_context()
    around = current_context.get()
    if span.is_valid:
        request = around.request_id if around is not None else job_id
        header = traceparent(span.trace_id, span.span_id, span.trace_flags)
        state = span.trace_state.to_header() if span.trace_state else ""
        return Context(request, header, state or None)
    if around is not None:
        return around
    return fresh_context(job_id, _random.getrandbits(128), _random.getrandbits(64))
