"""The numbers of one process, and how those of several become one.

The event loop writes them; a scrape or an exporter reads copies, from any thread. A snapshot is
plain data: it passes from a worker process to its guardian as JSON, and the guardian adds those of
its processes. Counters of a process that has ended keep counting in the sum; its gauges do not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from trellis.telemetry.metrics import BY_NAME, Metric

#: The most label sets of one metric; the values of all further ones are added up under `OTHER`.
MOST_SERIES: Final = 500
OTHER: Final = "(other)"

Labels: TypeAlias = tuple[str, ...]
#: A number, or the counts of a histogram's buckets (the last: above all bounds) and the sum.
Value: TypeAlias = float | tuple[tuple[int, ...], float]
#: Values by the name of the metric and the values of its labels.
Snapshot: TypeAlias = Mapping[str, Mapping[Labels, Value]]


class Number:
    """One counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def read(self) -> float:
        """Return the value."""
        return self.value


class Distribution:
    """One histogram. `scale` is how many of the units it is given are one of the metric's."""

    __slots__ = ("bounds", "counts", "scale", "total")

    def __init__(self, buckets: tuple[float, ...], scale: int = 1) -> None:
        self.bounds = [bound * scale for bound in buckets]
        self.counts = [0] * (len(buckets) + 1)
        self.total: float = 0
        self.scale = scale

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: list[float]) -> None:
        """Count many values, which are sorted for that."""
        values.sort()
        counted = 0
        for bucket, bound in enumerate(self.bounds):
            below = bisect_right(values, bound, counted)
            self.counts[bucket] += below - counted
            counted = below
        self.counts[-1] += len(values) - counted
        self.total += sum(values)

    def read(self) -> tuple[tuple[int, ...], float]:
        """Return the counts and the sum."""
        return tuple(self.counts), self.total / self.scale


class Registry:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._series: dict[str, dict[Labels, Number | Distribution]] = {}
        self._gauges: list[Callable[[], Snapshot]] = []
        self._stores: list[Callable[[], Snapshot]] = []

    def number(self, metric: Metric, *labels: str) -> Number:
        """Return the counter or gauge with these labels."""
        series, labels = self._place(metric, labels)
        found = series.get(labels)
        if not isinstance(found, Number):
            series[labels] = found = Number()
        return found

    def distribution(self, metric: Metric, *labels: str, scale: int = 1) -> Distribution:
        """Return the histogram with these labels."""
        series, labels = self._place(metric, labels)
        found = series.get(labels)
        if not isinstance(found, Distribution):
            series[labels] = found = Distribution(metric.buckets, scale)
        return found

    def read_at_scrape(self, read: Callable[[], Snapshot]) -> Callable[[], None]:
        """Add values that are read with each snapshot; return what ends that."""
        self._gauges.append(read)
        return lambda: self._gauges.remove(read)

    def read_store_at_export(self, read: Callable[[], Snapshot]) -> Callable[[], None]:
        """Add values of a store, which belong to no process; return what ends that."""
        self._stores.append(read)
        return lambda: self._stores.remove(read)

    def store_snapshot(self) -> Snapshot:
        """Return the values of the stores that this process reports; each once, never a sum."""
        found: dict[str, dict[Labels, Value]] = {}
        for read in tuple(self._stores):
            for name, series in read().items():
                found.setdefault(name, {}).update(series)
        return found

    def snapshot(self) -> Snapshot:
        """Return all values of the process now."""
        found = {
            name: {labels: each.read() for labels, each in tuple(series.items())}
            for name, series in tuple(self._series.items())
        }
        return merged([found, *(read() for read in tuple(self._gauges))])

    def _place(
        self, metric: Metric, labels: Labels
    ) -> tuple[dict[Labels, Number | Distribution], Labels]:
        series = self._series.setdefault(metric.name, {})
        if labels not in series and len(series) >= MOST_SERIES:
            labels = (OTHER,) * len(labels)
        return series, labels


def merged(snapshots: Iterable[Snapshot]) -> dict[str, dict[Labels, Value]]:
    """Return the sum of snapshots."""
    total: dict[str, dict[Labels, Value]] = {}
    for snapshot in snapshots:
        for name, series in snapshot.items():
            into = total.setdefault(name, {})
            for labels, value in series.items():
                into[labels] = _sum(into[labels], value) if labels in into else value
    return total


def bounded(series: Mapping[Labels, float]) -> dict[Labels, float]:
    """Return the values; if there are too many label sets, the last ones are added up."""
    found: dict[Labels, float] = {}
    for labels, value in series.items():
        place = labels if len(found) < MOST_SERIES else (OTHER,) * len(labels)
        found[place] = found.get(place, 0) + value
    return found


def _sum(one: Value, other: Value) -> Value:
    if isinstance(one, tuple) and isinstance(other, tuple):
        counts = tuple(a + b for a, b in zip(one[0], other[0], strict=True))
        return counts, one[1] + other[1]
    if isinstance(one, tuple) or isinstance(other, tuple):
        raise TypeError("A metric is a number here and a histogram there.")
    return one + other


def only_counters(snapshot: Snapshot) -> Snapshot:
    """Return what stays true after the process has ended."""
    return {name: each for name, each in snapshot.items() if BY_NAME[name].kind != "gauge"}


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as data that JSON has."""
    return {
        name: [[list(labels), value] for labels, value in series.items()]
        for name, series in snapshot.items()
    }


def from_json(data: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot that `to_json` wrote; metrics of another version are left out."""
    return {
        name: {tuple(labels): _value(value) for labels, value in series}
        for name, series in data.items()
        if name in BY_NAME
    }


def _value(value: Any) -> Value:  # noqa: ANN401 - JSON
    return (tuple(value[0]), value[1]) if isinstance(value, list) else value
