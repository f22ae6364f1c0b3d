"""Traces and metrics: switched on once per process, off by default.

`enable()` or `TRELLIS_TELEMETRY=otel` gives spans and metrics to OpenTelemetry; `collect()` only
keeps the metrics, for a health port. While both are off, the rest of Trellis has nothing to call.
May import what is below `client`. Start reading at `metrics.py`, the table of all metrics, and at
`tracing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from trellis.declaration import checks
from trellis.telemetry.registry import Registry

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from trellis.telemetry.tracing import Tracing

#: See `TRELLIS_TELEMETRY`.
Setting = Literal["off", "otel"]


class Telemetry:
    """What is switched on in this process."""

    def __init__(self) -> None:
        self._is_resolved = False
        self._tracing: Tracing | None = None
        self._registry: Registry | None = None

    @property
    def tracing(self) -> Tracing | None:
        """What makes spans; None: no spans are made."""
        if not self._is_resolved:
            self._resolve()
        return self._tracing

    @property
    def registry(self) -> Registry | None:
        """Where metrics are kept; None: they are not kept."""
        if not self._is_resolved:
            self._resolve()
        return self._registry

    def enable(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> None:
        """Use these providers, or the global ones."""
        from trellis.telemetry import instruments, tracing  # noqa: PLC0415 - only when switched on

        self._is_resolved = True
        self._tracing = tracing.Tracing(tracer_provider)
        instruments.register(meter_provider, self.collect())

    def collect(self) -> Registry:
        """Keep metrics from now on."""
        if self._registry is None:
            self._registry = Registry()
        return self._registry

    def disable(self) -> None:
        """Switch everything off."""
        self._is_resolved, self._tracing, self._registry = True, None, None

    def reset(self) -> None:
        """Let the settings decide again at the next use."""
        self._is_resolved, self._tracing, self._registry = False, None, None

    def _resolve(self) -> None:
        """Do what `TRELLIS_TELEMETRY` says."""
        from trellis.config import sources  # noqa: PLC0415 - read at first use, not at import

        found = sources(framework=False).get("TRELLIS_TELEMETRY")
        setting = "off" if found is None else found.text
        if checks.one_of(Setting, "TRELLIS_TELEMETRY", setting) == "otel":
            self.enable(None, None)
        self._is_resolved = True


#: The switch of this process.
current: Final = Telemetry()


def enable(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Give spans and metrics of this process to OpenTelemetry; the global providers by default.

    Call it once, before the first job is created and before a worker starts.
    """
    current.enable(tracer_provider, meter_provider)


def disable() -> None:
    """Make no further spans, and keep no further metrics in workers that start later."""
    current.disable()
