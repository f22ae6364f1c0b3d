"""The metrics as a real OpenTelemetry exporter receives them."""

from __future__ import annotations

import pytest

from tests.telemetry.conftest import Observed
from tests.worker.faulty import eventually
from trellis import JobDead, Retry, Service
from trellis.telemetry import current
from trellis.telemetry.metrics import METRICS


async def test_an_exporter_gets_what_happened(service: Service, observed: Observed) -> None:
    @service.job(retry=Retry.fixed("1ms", attempts=4))
    async def stubborn() -> None:
        raise ValueError("again")

    async with service.worker(concurrency=6):
        with pytest.raises(JobDead):
            await (await stubborn.create()).wait()
        lane = ("shop", "stubborn", "stubborn")
        await eventually(lambda: observed.exported("trellis.retries") == {lane: 3})
        assert observed.exported("trellis.attempts.started") == {lane: 4}
        assert observed.exported("trellis.attempts.settled")[*lane, "dead"] == 1
        assert observed.exported("trellis.attempt.duration.count") == {lane: 4}
        assert 0 < observed.exported("trellis.attempt.duration.sum")[lane] < 60
        assert observed.exported("trellis.attempt.duration.bucket")[*lane, "+Inf"] == 4
        assert observed.exported("trellis.slots") == {(): 6}


def test_every_metric_of_a_process_is_an_instrument(observed: Observed) -> None:
    assert current.registry is not None
    for metric in METRICS:
        labels = tuple("x" for _ in metric.labels)
        if metric.kind == "histogram":
            current.registry.distribution(metric, *labels).add(1)
        else:
            current.registry.number(metric, *labels).value = 1
    for metric in METRICS:
        names = (
            [f"{metric.instrument}.{part}" for part in ("count", "sum", "bucket")]
            if metric.kind == "histogram"
            else [metric.instrument]
        )
        is_exported = metric.source in {"worker", "feed"}
        assert [bool(observed.exported(name)) for name in names] == [is_exported] * len(names)
