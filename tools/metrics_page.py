"""The text of `docs/reference/metrics.md`, made from the table of `trellis.telemetry.metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trellis.telemetry.metrics import METRICS, Source

_HEADER: Final = """\
# Metrics

Generated from `src/trellis/telemetry/metrics.py` by `make docs`; do not edit.

[Observability](../guides/observability.md) says how to read them. A histogram has the series
`_bucket`, `_sum` and `_count` in Prometheus, and the instruments `.bucket`, `.sum` and `.count` in
OpenTelemetry. A metric has at most 500 sets of labels; further ones are added up under `(other)`.
"""
_SOURCES: Final[dict[Source, str]] = {
    "worker": "Worker processes: the health port of their guardian adds them; OpenTelemetry.",
    "feed": "Programs that read the feed, and the server.",
    "guardian": "Guardians: the health port.",
    "store": "The store: the health port, and the server.",
}


def render_metrics() -> str:
    """Return the text of the page."""
    return "\n".join([_HEADER, *_tables()])


def _tables() -> Iterator[str]:
    for source, title in _SOURCES.items():
        yield from (f"## {title.partition(':')[0].rstrip('.')}", "", title, "")
        yield "| Prometheus | OpenTelemetry | kind | unit | labels | meaning |"
        yield "|---|---|---|---|---|---|"
        for each in METRICS:
            if each.source == source:
                instrument = f"`{each.instrument}`" if source in {"worker", "feed"} else ""
                labels = ", ".join(f"`{label}`" for label in each.labels)
                cells = (f"`{each.name}`", instrument, each.kind, each.unit, labels, each.help)
                yield f"| {' | '.join(cells)} |"
        yield ""
