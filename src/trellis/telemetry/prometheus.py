"""The text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trellis.telemetry.metrics import METRICS, Metric
from trellis.telemetry.registry import Labels, Snapshot, Value

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render(snapshot: Snapshot) -> str:
    """Return the snapshot as text; metrics without a value are left out."""
    lines = [line for metric in METRICS for line in _family(metric, snapshot)]
    return "\n".join([*lines, ""])


def _family(metric: Metric, snapshot: Snapshot) -> Iterator[str]:
    series = snapshot.get(metric.name)
    if not series:
        return
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in sorted(series.items()):
        yield from _samples(metric, labels, value)


def _samples(metric: Metric, labels: Labels, value: Value) -> Iterator[str]:
    named = [f'{name}="{_escaped(text)}"' for name, text in zip(metric.labels, labels, strict=True)]
    if not isinstance(value, tuple):
        yield f"{metric.name}{_braces(named)} {_number(value)}"
        return
    counts, total = value
    below = 0
    for bound, count in zip((*map(_number, metric.buckets), "+Inf"), counts, strict=True):
        below += count
        within = f'le="{bound}"'
        yield f"{metric.name}_bucket{_braces([*named, within])} {below}"
    yield f"{metric.name}_sum{_braces(named)} {_number(total)}"
    yield f"{metric.name}_count{_braces(named)} {below}"


def _braces(named: list[str]) -> str:
    return f"{{{','.join(named)}}}" if named else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
