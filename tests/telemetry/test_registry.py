"""Numbers of one process, and of several together; the text that Prometheus reads."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trellis.telemetry import metrics as table
from trellis.telemetry.metrics import BY_NAME, METRICS, Metric
from trellis.telemetry.prometheus import render
from trellis.telemetry.registry import (
    MOST_SERIES,
    OTHER,
    Registry,
    bounded,
    from_json,
    merged,
    only_counters,
    to_json,
)

LANE = ("shop", "mails", "send")


def filled(started: int = 3, duration: float = 0.2) -> Registry:
    registry = Registry()
    registry.number(table.STARTED, *LANE).value += started
    registry.number(table.SLOTS).value = 10
    registry.distribution(table.DURATION, *LANE).add(duration)
    return registry


def test_snapshots_of_several_processes_are_added() -> None:
    total = merged([filled(3, 0.2).snapshot(), filled(4, 0.3).snapshot()])
    assert total[table.STARTED.name] == {LANE: 7}
    counts, seconds = total[table.DURATION.name][LANE]  # type: ignore[misc] # a histogram
    assert (sum(counts), seconds) == (2, 0.5)
    assert counts[table.DURATION.buckets.index(0.5)] == 2


def test_counters_of_an_ended_process_stay_and_its_gauges_go() -> None:
    kept = only_counters(filled().snapshot())
    assert set(kept) == {table.STARTED.name, table.DURATION.name}


def test_a_snapshot_passes_through_json_and_unknown_metrics_are_left_out() -> None:
    before = filled().snapshot()
    data = json.loads(json.dumps({**to_json(before), "trellis_of_a_later_version": [[[], 1]]}))
    assert from_json(data) == before


def test_many_values_are_counted_as_one_by_one() -> None:
    values = [0.001, 0.0011, 0.5, 0.5000001, 7000.0, 0.0, 3600.0]
    one, many = (Registry().distribution(table.WAIT, *LANE) for _ in range(2))
    for value in values:
        one.add(value)
    many.add_all(list(values[:4]))
    many.add_all(list(values[4:]))
    many.add_all([])
    assert many.counts == one.counts
    assert many.total == pytest.approx(one.total)


def test_label_sets_beyond_the_limit_are_added_up() -> None:
    registry = Registry()
    for number in range(MOST_SERIES + 3):
        registry.number(table.RETRIES, "shop", "mails", f"type-{number}").value += 1
    series = registry.snapshot()[table.RETRIES.name]
    assert (len(series), series[OTHER, OTHER, OTHER]) == (MOST_SERIES + 1, 3)
    many: dict[tuple[str, ...], float] = {(f"{number}",): 2.0 for number in range(MOST_SERIES + 2)}
    assert bounded(many)[OTHER,] == 4


def test_prometheus_reads_every_kind_of_metric_and_any_label() -> None:
    registry = filled()
    strange = 'a "quoted" \\ name\nof two lines'
    registry.number(table.STARTED, strange, "q", "t").value += 1
    families = {
        each.name: each for each in text_string_to_metric_families(render(registry.snapshot()))
    }
    started = families["trellis_attempts_started"]
    assert started.type == "counter"
    found = {each.labels["service"]: each.value for each in started.samples}
    assert found == {"shop": 3, strange: 1}
    assert families["trellis_slots"].samples[0].value == 10
    duration = families["trellis_attempt_duration_seconds"]
    assert duration.type == "histogram"
    by_bound = {each.labels["le"]: each.value for each in duration.samples if "le" in each.labels}
    assert (by_bound["0.1"], by_bound["0.5"], by_bound["+Inf"]) == (0, 1, 1)
    rest = {each.name: each.value for each in duration.samples if "le" not in each.labels}
    assert rest == {f"{duration.name}_sum": 0.2, f"{duration.name}_count": 1}


def test_every_metric_is_named_by_the_conventions() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("trellis_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        assert metric.name.removesuffix("_total").endswith("_seconds") == (metric.unit == "s")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert metric.help.endswith(".")
        assert not {"job", "job_id", "id", "key", "tenant"} & set(metric.labels)
    assert Metric("trellis_a_b_total", "counter", "1", (), "").instrument == "trellis.a.b"
