"""Services whose telemetry goes to real exporters in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trellis import Service, telemetry
from trellis.telemetry import current
from trellis.telemetry.metrics import Metric
from trellis.telemetry.registry import Labels, Value


class Observed:
    """What the exporters of this process have received."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader])

    def enable(self) -> None:
        telemetry.enable(tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)

    def spans(self, first_word: str = "") -> list[ReadableSpan]:
        """Return the finished spans whose name begins with a word, in the order of their end."""
        spans = self.exporter.get_finished_spans()
        return [each for each in spans if each.name.startswith(first_word)]

    def exported(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values of an instrument by its attributes, in their order."""
        data = self.reader.get_metrics_data()
        if data is None:  # no instrument has a value
            return {}
        return {
            tuple(str(each) for each in (point.attributes or {}).values()): point.value  # type: ignore[union-attr] # no histogram
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }


def values_of(metric: Metric) -> Mapping[Labels, Value]:
    """Return what this process has counted."""
    assert current.registry is not None
    return current.registry.snapshot().get(metric.name, {})


@pytest.fixture
def observed() -> Iterator[Observed]:
    telemetry.disable()
    observed = Observed()
    observed.enable()
    yield observed
    telemetry.disable()
    observed.meter_provider.shutdown()
    observed.tracer_provider.shutdown()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
async def service(url: str) -> AsyncIterator[Service]:
    async with Service("shop", url) as service:
        yield service
