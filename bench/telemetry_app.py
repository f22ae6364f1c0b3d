"""The program of `bench.app` with OpenTelemetry: a real SDK whose exporters drop what they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from bench.app import drains
from trellis import telemetry

__all__ = ["drains"]


class NoSpans(SpanExporter):
    """Drops spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Drop them."""
        return SpanExportResult.SUCCESS


class NoMetrics(MetricExporter):
    """Drops metrics."""

    def export(self, *_: Any, **__: Any) -> MetricExportResult:  # noqa: ANN401 - all it is given
        """Drop them."""
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Have nothing to send."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:  # noqa: ANN401 - as above
        """Have nothing to close."""


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(NoSpans()))
reader = PeriodicExportingMetricReader(NoMetrics(), export_interval_millis=1000)
telemetry.enable(tracer_provider=provider, meter_provider=MeterProvider([reader]))
