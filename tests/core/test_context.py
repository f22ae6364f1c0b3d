"""The request and trace a job belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.core.job import Context, fresh_context, is_traceparent, random_traceparent, traceparent

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_w3c_traceparent_is_recognised() -> None:
    assert is_traceparent(GOOD)
    assert Context("request", GOOD).trace_id == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD.upper(),
        GOOD + "-extra",
        GOOD + "\n",
        "ff" + GOOD[2:],
        GOOD.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        GOOD.replace("b7ad6b7169203331", "0" * 16),
        GOOD[:-1],
    ],
)
def test_anything_else_is_not_a_traceparent(text: str) -> None:
    assert not is_traceparent(text)


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**64 - 1))
def test_a_fresh_context_always_has_a_usable_trace(trace_bits: int, span_bits: int) -> None:
    context = fresh_context("request", trace_bits, span_bits)
    assert is_traceparent(context.traceparent)
    assert context.request_id == "request"
    assert int(context.trace_id, 16) == (trace_bits or 1)


def test_a_traceparent_carries_its_flags() -> None:
    assert traceparent(1, 2, flags=1).endswith("-0000000000000002-01")


def test_random_bytes_make_a_traceparent() -> None:
    made = random_traceparent(bytes(range(24)))
    assert is_traceparent(made)
    assert made == "00-000102030405060708090a0b0c0d0e0f-1011121314151617-00"
