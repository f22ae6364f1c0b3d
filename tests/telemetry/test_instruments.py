"""The metrics as a real OpenTelemetry exporter receives them."""

from __future__ import annotations

import asyncio

import pytest

from tests.telemetry.conftest import Observed
from tests.worker.faulty import eventually
from trellis import JobDead, Retry, Service
from trellis.engines.memory import MemoryEngine
from trellis.server import create_app
from trellis.telemetry import current
from trellis.telemetry.metrics import METRICS
from trellis.testing.builders import a_job


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


def test_every_metric_but_those_of_guardians_is_an_instrument(observed: Observed) -> None:
    assert current.registry is not None
    store = {each.name: {("x",) * len(each.labels): 1.0} for each in METRICS}
    current.registry.read_store_at_export(lambda: store)
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
        is_exported = metric.source != "guardian"
        assert [bool(observed.exported(name)) for name in names] == [is_exported] * len(names)


async def test_a_server_exports_the_numbers_of_the_store(observed: Observed) -> None:
    engine = MemoryEngine()
    await engine.create([a_job(), a_job()])
    app = create_app(engine=engine)
    async with app.router.lifespan_context(app):
        found = await asyncio.to_thread(observed.exported, "trellis.jobs")
        assert found == {("shop", "invoices", "invoice", "pending"): 2}
        assert await asyncio.to_thread(observed.exported, "trellis.engine.up") == {(): 1}
        (oldest,) = (await asyncio.to_thread(observed.exported, "trellis.oldest.due")).values()
        assert oldest >= 0
    while await asyncio.to_thread(observed.exported, "trellis.jobs"):
        pass  # instruments share a snapshot for some milliseconds


async def test_the_worker_that_leads_exports_the_numbers_of_the_store(
    service: Service, observed: Observed
) -> None:
    @service.job
    async def later() -> None: ...

    await later.create(delay="1h")
    async with service.worker():
        lane = ("shop", "later", "later")
        while await asyncio.to_thread(observed.exported, "trellis.jobs") != {(*lane, "pending"): 1}:
            pass
        assert await asyncio.to_thread(observed.exported, "trellis.workers") == {(): 1}


async def test_an_exporter_that_the_loop_waits_for_gets_what_was_read_before(
    observed: Observed,
) -> None:
    engine = MemoryEngine()
    app = create_app(engine=engine)
    async with app.router.lifespan_context(app):
        assert observed.exported("trellis.engine.up") == {}
        while await asyncio.to_thread(observed.exported, "trellis.engine.up") != {(): 1}:
            pass  # instruments share a snapshot for some milliseconds
        assert observed.exported("trellis.engine.up") == {(): 1}
