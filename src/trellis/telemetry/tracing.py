"""Spans of OpenTelemetry: creating a job, each attempt, and each settlement, all in one trace.

The names and attributes are those of the semantic conventions for messaging. The span of a creation
is what the `traceparent` of its job names; attempts are its children, settlements are children of
their attempts. A job whose trace is not sampled has no further spans: looking at one character of
its `traceparent` decides that, so tracing a few jobs out of many costs nothing for the others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trellis.core.job import Context, Definition, Failure, Fence, Head, JobId, NewJob, traceparent

_propagator: Final = TraceContextTextMapPropagator()
_SAMPLED: Final = frozenset("13579bdf")  # the last of the two hex digits of the flags


class Tracing:
    """Makes spans with one tracer."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer: Tracer = trace.get_tracer("trellis", tracer_provider=provider)

    def create(
        self, pattern: NewJob, ids: Sequence[JobId], inside: Context | None
    ) -> trace.SpanContext:
        """Record that jobs are created; return the context that they carry.

        `inside` is the job whose handler creates them, if no span is active.
        """
        attributes: dict[str, str | int] = {
            **_destination(pattern.service, pattern.queue, "create"),
            "trellis.job.type": pattern.type,
        }
        if len(ids) == 1:
            attributes["messaging.message.id"] = ids[0]
        else:
            attributes["messaging.batch.message_count"] = len(ids)
        parent = None if inside is None else context_of(inside)
        span = self._tracer.start_span(
            f"create {pattern.service}/{pattern.queue}", parent, SpanKind.PRODUCER, attributes
        )
        span.end()
        return span.get_span_context()

    def begin(self, definition: Definition, head: Head, fence: Fence) -> AttemptSpan | None:
        """Start the span of an attempt; None if the trace of its job is not sampled."""
        if definition.context.traceparent[-1] not in _SAMPLED:
            return None
        parent = context_of(definition.context)
        created = trace.get_current_span(parent).get_span_context()
        span = self._tracer.start_span(
            f"process {definition.service}/{definition.queue}",
            parent,
            SpanKind.CONSUMER,
            {
                **_destination(definition.service, definition.queue, "process"),
                "messaging.message.id": definition.id,
                "messaging.consumer.group.name": definition.service,
                "trellis.job.type": definition.type,
                "trellis.job.attempt": head.attempt,
                "trellis.attempt.id": fence.attempt_id,
            },
            [Link(created)],
        )
        return AttemptSpan(span)

    def settle(
        self, definition: Definition, head: Head, attempt: AttemptSpan | None, seconds: float = 0.0
    ) -> None:
        """Record that the end of an attempt was stored, which took this long.

        Without the span of the attempt, as when its process died, the job's creation is the parent.
        """
        if attempt is None and definition.context.traceparent[-1] not in _SAMPLED:
            return
        parent = (
            context_of(definition.context)
            if attempt is None
            else trace.set_span_in_context(attempt.span, TraceContext())
        )
        now = time.time_ns()
        span = self._tracer.start_span(
            f"settle {definition.service}/{definition.queue}",
            parent,
            SpanKind.CLIENT,
            {
                **_destination(definition.service, definition.queue, "settle"),
                "messaging.message.id": definition.id,
                "trellis.job.type": definition.type,
                "trellis.job.state": head.state.value,
            },
            start_time=now - round(seconds * 1e9),
        )
        _mark(span, head.error)
        span.end(now)

    def enter(self, context: Context) -> None:
        """Make the span that the context of a job names the active one of the present context."""
        contexts.attach(context_of(context))

    def serve(self, method: str, headers: Mapping[str, str]) -> Span:
        """Start the span of an HTTP request, in the trace that the caller names."""
        return self._tracer.start_span(
            method, extracted(headers), SpanKind.SERVER, {"http.request.method": method}
        )


class AttemptSpan:
    """The span of one attempt."""

    __slots__ = ("span",)

    def __init__(self, span: Span) -> None:
        self.span = span

    def enter(self) -> None:
        """Make it the active span of the present context."""
        contexts.attach(trace.set_span_in_context(self.span))

    def inside(self, context: Context) -> Context:
        """Return the context of the job for a handler in another process."""
        span = self.span.get_span_context()
        parent = traceparent(span.trace_id, span.span_id, span.trace_flags)
        return context._replace(traceparent=parent)

    def end(self, failure: Failure | None) -> None:
        """End it, with what made the attempt fail."""
        _mark(self.span, failure)
        self.span.end()


def _mark(span: Span, failure: Failure | None) -> None:
    if failure is not None:
        span.set_attribute("error.type", failure.code)
        span.set_status(Status(StatusCode.ERROR, failure.message))


def extracted(headers: Mapping[str, str]) -> TraceContext:
    """Return the trace that the headers of a request name; an empty one if they name none."""
    return _propagator.extract(headers, TraceContext())


def context_of(context: Context) -> TraceContext:
    """Return the span that the context of a job names, as a parent."""
    carrier = {"traceparent": context.traceparent}
    if context.tracestate is not None:
        carrier["tracestate"] = context.tracestate
    return _propagator.extract(carrier, TraceContext())


def _destination(service: str, queue: str, operation: str) -> dict[str, str | int]:
    return {
        "messaging.system": "trellis",
        "messaging.destination.name": f"{service}/{queue}",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
