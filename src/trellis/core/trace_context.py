"""The request and the trace that a job belongs to; they never change.

`traceparent` follows W3C Trace Context, version 00. The random parts are arguments: the client
takes them from the active OpenTelemetry span or makes new ones, so every job has a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__


class Context(NamedTuple):
    """Immutable correlation data of a job."""

    request_id: str
    traceparent: str
    tracestate: str | None = None

    @property
    def trace_id(self) -> str:
        """The 32 hex digits that all spans of this trace share."""
        return self.traceparent[3:35]


def build_context(request_id: str, traceparent: str, tracestate: str | None) -> Context:
    """Return a context, at half the cost of calling the class."""
    return _make(Context, (request_id, traceparent, tracestate))


def build_contexts(
    request_ids: Iterable[str], traceparent: str, tracestate: str | None
) -> list[Context]:
    """Return contexts of many requests in one trace."""
    return [_make(Context, (each, traceparent, tracestate)) for each in request_ids]


def is_traceparent(text: str) -> bool:
    """Return whether the text is a valid W3C traceparent."""
    return _TRACEPARENT.fullmatch(text) is not None


def fresh_context(request_id: str, trace_bits: int, span_bits: int) -> Context:
    """Return the context of a job outside any trace, from 128 and 64 random bits."""
    return Context(request_id, traceparent(trace_bits or 1, span_bits or 1, flags=0))


def random_traceparent(randomness: bytes) -> str:
    """Write a traceparent from 24 random bytes.

    W3C forbids an id of zeros; 24 random bytes do not contain one in practice.
    """
    digits = randomness.hex()
    return f"00-{digits[:32]}-{digits[32:]}-00"


def traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Write a W3C traceparent."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
