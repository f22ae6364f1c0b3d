"""The metrics as instruments of OpenTelemetry, read when an exporter collects them.

Every instrument is observable, so an attempt costs no call of OpenTelemetry. Its API has no
observable histogram, and recording one value costs as much as a third of a job. A histogram is
therefore three counters: `.count`, `.sum`, and `.bucket` with the upper bound in `le`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

from opentelemetry import metrics as api
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from trellis.telemetry.metrics import METRICS, Metric
from trellis.telemetry.registry import Labels, Registry, Snapshot, Value

#: For how many seconds a snapshot is shared.
_SHARED: Final = 0.01
_Read: TypeAlias = Callable[[Metric, Labels, Value], Iterable[Observation]]


def register(provider: MeterProvider | None, registry: Registry) -> None:
    """Register an instrument for each metric but those of guardians, which export nothing."""
    meter: Meter = api.get_meter("trellis", meter_provider=provider)
    own, stored = _Latest(registry.snapshot), _Latest(registry.store_snapshot)
    for metric in METRICS:
        if metric.source == "guardian":
            continue
        latest = stored if metric.source == "store" else own
        name, unit, text = metric.instrument, metric.unit, metric.help
        if metric.kind == "histogram":
            for suffix, unit_of, read in (
                ("count", "1", _count), ("sum", unit, _total), ("bucket", "1", _buckets),
            ):  # fmt: skip
                observe = partial(_observed, latest, metric, read)
                meter.create_observable_counter(f"{name}.{suffix}", [observe], unit_of, text)
        else:
            observe = partial(_observed, latest, metric, _plain)
            create = (
                meter.create_observable_counter
                if metric.kind == "counter"
                else meter.create_observable_gauge
            )
            create(name, [observe], unit, text)


class _Latest:
    """A snapshot that all instruments share which are read at about the same time."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read
        self._read_at = float("-inf")
        self._snapshot: Snapshot = {}

    def read(self) -> Snapshot:
        if time.monotonic() - self._read_at > _SHARED:
            self._snapshot, self._read_at = self._read(), time.monotonic()
        return self._snapshot


def _observed(
    latest: _Latest, metric: Metric, read: _Read, _: CallbackOptions
) -> Iterator[Observation]:
    for labels, value in latest.read().get(metric.name, {}).items():
        yield from read(metric, labels, value)


def _plain(metric: Metric, labels: Labels, value: Value) -> Iterator[Observation]:
    if not isinstance(value, tuple):
        yield Observation(value, _attributes(metric, labels))


def _count(metric: Metric, labels: Labels, value: Value) -> Iterator[Observation]:
    if isinstance(value, tuple):
        yield Observation(sum(value[0]), _attributes(metric, labels))


def _total(metric: Metric, labels: Labels, value: Value) -> Iterator[Observation]:
    if isinstance(value, tuple):
        yield Observation(value[1], _attributes(metric, labels))


def _buckets(metric: Metric, labels: Labels, value: Value) -> Iterator[Observation]:
    if not isinstance(value, tuple):
        return
    below = 0
    for bound, count in zip((*metric.buckets, "+Inf"), value[0], strict=True):
        below += count
        yield Observation(below, {**_attributes(metric, labels), "le": str(bound)})


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
