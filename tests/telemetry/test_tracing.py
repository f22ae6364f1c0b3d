"""One trace from the creation of a job to its last settlement, as a real exporter receives it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from tests.telemetry.conftest import Observed
from tests.worker.faulty import FaultyEngine, eventually
from tests.worker.test_leases import QUICKLY, create, service_of
from trellis import (
    ActiveJob,
    ConfigurationError,
    JobDead,
    PayloadInvalid,
    Retry,
    Service,
    telemetry,
)
from trellis.core.durations import SECOND
from trellis.engines.demand import Demand
from trellis.engines.values import WorkerInfo
from trellis.telemetry import current
from trellis.worker.supervisor import Supervisor


def identity(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


def attribute(span: ReadableSpan, name: str) -> Any:  # noqa: ANN401 - of any type
    return (span.attributes or {})[name]


async def test_attempts_and_settlements_are_in_the_trace_of_their_creation(
    service: Service, observed: Observed
) -> None:
    @service.job(retry=Retry.fixed("1ms"))
    async def flaky(job: ActiveJob[int]) -> str:
        if job.attempt == 1:
            raise ValueError("not yet")
        return "done"

    async with service.worker():
        ref = await flaky.create(7)
        assert await ref.wait() == "done"
    (created,) = observed.spans("create")
    first, second = observed.spans("process")
    retried, completed = observed.spans("settle")
    assert created.parent is None
    assert created.kind is SpanKind.PRODUCER
    for attempt in (first, second):
        assert parent(attempt) == identity(created)
        assert attempt.kind is SpanKind.CONSUMER
        (link,) = attempt.links
        assert (link.context.trace_id, link.context.span_id) == identity(created)
    assert (parent(retried), parent(completed)) == (identity(first), identity(second))
    assert [attribute(each, "trellis.job.attempt") for each in (first, second)] == [1, 2]
    states = [attribute(each, "trellis.job.state") for each in (retried, completed)]
    assert states == ["retry", "completed"]
    assert first.status.status_code is StatusCode.ERROR
    assert "not yet" in (first.status.description or "")
    assert second.status.status_code is StatusCode.UNSET
    assert {attribute(each, "messaging.message.id") for each in observed.spans()} == {ref.id}
    assert {attribute(each, "messaging.destination.name") for each in observed.spans()} == {
        "shop/flaky"
    }
    assert [each.name for each in (created, first, retried)] == [
        "create shop/flaky", "process shop/flaky", "settle shop/flaky",
    ]  # fmt: skip
    assert (await ref.status()).trace_id == f"{identity(created)[0]:032x}"


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_what_a_handler_does_is_inside_of_its_attempt(
    service: Service, observed: Observed, kind: str
) -> None:
    tracer = observed.tracer_provider.get_tracer("program")

    @service.job
    async def child() -> None:
        """Do nothing."""

    if kind == "coroutine":

        @service.job(name="outer")
        async def outer() -> None:
            await asyncio.sleep(0)
            with tracer.start_as_current_span("inner"):
                await child.create()
    else:

        @service.job(name="outer")
        def outer() -> None:
            with tracer.start_as_current_span("inner"):
                child.create_sync()

    async with service.worker():
        await (await service.find("outer").create()).wait()
        await eventually(lambda: len(observed.spans("settle")) == 2)
    (inner,) = observed.spans("inner")
    attempt = next(each for each in observed.spans("process") if each.name.endswith("outer"))
    inside = next(each for each in observed.spans("create") if each.name.endswith("child"))
    assert parent(inner) == identity(attempt)
    assert parent(inside) == identity(inner)
    assert len({identity(each)[0] for each in observed.spans()}) == 1
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_jobs_of_one_call_share_one_creation(service: Service, observed: Observed) -> None:
    @service.job
    async def quick(number: int) -> int:
        return number

    with observed.tracer_provider.get_tracer("program").start_as_current_span("request"):
        refs = await quick.create_many(range(3))
    async with service.worker():
        for ref in refs:
            await ref.wait()
        await eventually(lambda: len(observed.spans("settle")) == 3)
    (created,), (request,) = observed.spans("create"), observed.spans("request")
    assert parent(created) == identity(request)
    assert attribute(created, "messaging.batch.message_count") == 3
    assert {parent(each) for each in observed.spans("process")} == {identity(created)}


async def test_a_dead_job_ends_its_trace_with_what_was_wrong(
    service: Service, observed: Observed
) -> None:
    @service.job(retry=Retry.never())
    async def broken() -> None:
        raise ValueError("no")

    async with service.worker():
        with pytest.raises(JobDead):
            await (await broken.create()).wait()
        await eventually(lambda: len(observed.spans("settle")) == 1)
    (settled,) = observed.spans("settle")
    assert attribute(settled, "trellis.job.state") == "dead"
    assert attribute(settled, "error.type") == "exception"


async def test_the_settlement_for_a_worker_that_is_gone_is_in_the_trace(observed: Observed) -> None:
    async def work() -> None:
        """Do nothing."""

    service = service_of(work, retry=Retry.fixed("1ms"))
    engine = FaultyEngine()
    await create(engine, service.find("work"))
    silent = await engine.open_session(WorkerInfo("silent", "host", 1), SECOND // 10)
    await engine.claim(silent.id, [Demand("shop", ("work",), 1)], 1)
    async with Supervisor(engine, lambda: engine, service.job_types, QUICKLY):
        await eventually(lambda: len(observed.spans("settle")) == 2)
    (created,) = observed.spans("create")
    lost, completed = observed.spans("settle")
    assert (parent(lost), attribute(lost, "error.type")) == (identity(created), "lease_lost")
    assert attribute(completed, "trellis.job.state") == "completed"


async def test_an_invalid_payload_makes_no_span(service: Service, observed: Observed) -> None:
    @service.job
    async def quick(number: int) -> int:
        return number

    with pytest.raises(PayloadInvalid, match="quick"):
        await quick.create("seven")  # type: ignore[arg-type] # on purpose
    assert observed.spans() == []


async def test_a_job_whose_trace_is_not_sampled_has_no_span(
    service: Service, observed: Observed
) -> None:
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0)))
    provider.add_span_processor(SimpleSpanProcessor(observed.exporter))
    telemetry.enable(tracer_provider=provider, meter_provider=observed.meter_provider)

    @service.job
    async def quick(number: int) -> int:
        return number

    async with service.worker():
        ref = await quick.create(1)
        assert await ref.wait() == 1
    assert observed.spans() == []
    provider.shutdown()


async def test_without_telemetry_no_span_is_made_and_every_job_has_a_trace(
    service: Service, observed: Observed
) -> None:
    telemetry.disable()

    @service.job
    async def quick(number: int) -> int:
        return number

    async with service.worker():
        ref = await quick.create(1)
        assert await ref.wait() == 1
    assert observed.spans() == []
    assert len((await ref.status()).trace_id) == 32


def test_the_setting_switches_it_on_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_TELEMETRY", "otel")
    current.reset()
    try:
        assert current.tracing is not None
        assert current.registry is not None
        monkeypatch.setenv("TRELLIS_TELEMETRY", "prometheus")
        current.reset()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="TRELLIS_TELEMETRY"):
                assert current.tracing is not None
    finally:
        current.disable()
