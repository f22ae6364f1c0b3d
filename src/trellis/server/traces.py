"""Requests continue the trace that their caller names, so a job belongs to it too.

Without telemetry only the ids are passed on: the `traceparent` of a submitted job is that of the
request. With telemetry, each request is a span between its caller and what it creates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from trellis.telemetry import current
from trellis.telemetry.tracing import extracted

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAMES: Final = (b"traceparent", b"tracestate")
_SERVER_ERROR: Final = 500


class TraceRequests:
    """Surrounds an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request in its trace."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _NAMES
        }
        tracing = current.tracing
        if tracing is not None:
            span = tracing.serve(scope["method"], headers)
            with trace.use_span(span, end_on_exit=True):
                await self._app(scope, receive, _noting(span, scope, send))
        elif headers:
            token = contexts.attach(extracted(headers))
            try:
                await self._app(scope, receive, send)
            finally:
                contexts.detach(token)
        else:
            await self._app(scope, receive, send)


def _noting(span: Span, scope: Scope, send: Send) -> Send:
    """Return what sends the answer and records its status and route."""

    async def note(message: Message) -> None:
        if message["type"] == "http.response.start":
            status: int = message["status"]
            span.set_attribute("http.response.status_code", status)
            if status >= _SERVER_ERROR:
                span.set_status(Status(StatusCode.ERROR))
            path = getattr(scope.get("route"), "path", None)
            if path is not None:
                span.update_name(f"{scope['method']} {path}")
                span.set_attribute("http.route", path)
        await send(message)

    return note
