"""Where new jobs come from: the request and trace they continue.

The active OpenTelemetry span comes first, then the job whose handler creates these; without either
the call starts a trace of its own, which all its jobs share, so none is without one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from opentelemetry import trace

from trellis.contract.ambient import current_job
from trellis.core.context import Context, build_contexts, random_traceparent, traceparent
from trellis.core.job import JobId

# Ids of traces are no secrets; this source costs a tenth of the system's.
_random = random.Random()  # noqa: S311
os.register_at_fork(after_in_child=_random.seed)


class Origin:
    """The context of the jobs that one call creates."""

    __slots__ = ("_around", "_parent", "_request", "_state")

    def __init__(self) -> None:
        active = trace.get_current_span()
        job = current_job.get()
        around = None if job is None else job.context
        #: The request they continue; None: each job is a request of its own.
        self._request = None if around is None else around.request_id
        self._state: str | None = None
        if active is not trace.INVALID_SPAN and (span := active.get_span_context()).is_valid:
            self._around = None
            self._parent = traceparent(span.trace_id, span.span_id, span.trace_flags)
            self._state = (span.trace_state.to_header() if span.trace_state else "") or None
        else:
            self._around = around
            self._parent = random_traceparent(_random.randbytes(24))

    def context(self, job_id: JobId) -> Context:
        """Return the context of one of the jobs."""
        return self._around or Context(self._request or job_id, self._parent, self._state)

    def contexts(self, ids: Sequence[JobId]) -> Sequence[Context]:
        """Return the contexts of all of the jobs."""
        if self._around is not None or self._request is not None:
            return [self.context(JobId(""))] * len(ids)
        return build_contexts(ids, self._parent, self._state)
