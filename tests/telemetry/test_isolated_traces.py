"""A handler in a separate process belongs to the span of its attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.telemetry.apart import apart, child, parent
from tests.telemetry.conftest import Observed
from tests.telemetry.test_tracing import identity
from tests.worker.faulty import eventually


async def test_what_it_does_is_inside_of_its_attempt(
    tmp_path: Path, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_TELEMETRY", "otel")  # for the process of the handler
    apart.connection.point_at(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with apart, apart.worker():
        seen = await (await parent.create()).wait("60s")
        await eventually(lambda: len(observed.spans("settle")) == 2)
    inner, attempt = sorted(observed.spans("process"), key=lambda span: span.name)
    assert (attempt.name, inner.name) == ("process apart/parent", "process apart/child")
    assert tuple(seen) == identity(attempt)
    assert inner.parent is not None
    assert inner.parent.span_id == identity(attempt)[1]
    assert child.job_type.name == "child"
