"""The table of all metrics: the only place that names them.

The Prometheus text, the OpenTelemetry instruments, the table in the guide and the checks of the
dashboard and the alert rules are made from it. Labels have bounded sets of values: names of
services, queues, types, states and verbs, never ids of jobs.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
#: Where the values come from: worker processes, their guardian, the store, or a reader of the feed.
Source = Literal["worker", "guardian", "store", "feed"]

LANE: Final = ("service", "queue", "type")
_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)
_ITEMS: Final = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)


class Metric(NamedTuple):
    """One metric."""

    #: As in Prometheus.
    name: str
    kind: Kind
    #: In the notation of OpenTelemetry (UCUM).
    unit: str
    labels: tuple[str, ...]
    help: str
    source: Source = "worker"
    #: The upper bounds of a histogram's buckets.
    buckets: tuple[float, ...] = ()

    @property
    def instrument(self) -> str:
        """The name in OpenTelemetry: trellis_attempts_started_total is trellis.attempts.started."""
        name = self.name.removesuffix("_total").removesuffix("_seconds")
        return name.replace("_", ".")


STARTED: Final = Metric(
    "trellis_attempts_started_total", "counter", "{attempt}", LANE, "Handlers called."
)
SETTLED: Final = Metric(
    "trellis_attempts_settled_total", "counter", "{attempt}", (*LANE, "state"),
    "Attempts whose end was stored, by the state of the job after it.",
)  # fmt: skip
DURATION: Final = Metric(
    "trellis_attempt_duration_seconds", "histogram", "s", LANE,
    "How long handlers ran.", buckets=_SECONDS,
)  # fmt: skip
WAIT: Final = Metric(
    "trellis_attempt_wait_seconds", "histogram", "s", LANE,
    "How long jobs that could have started waited for their handler to be called.",
    buckets=_SECONDS,
)  # fmt: skip
RETRIES: Final = Metric(
    "trellis_retries_total", "counter", "{attempt}", LANE,
    "Attempts that failed and are followed by another.",
)  # fmt: skip
LEASES_LOST: Final = Metric(
    "trellis_leases_lost_total", "counter", "{attempt}", LANE,
    "Attempts that maintenance ended because their worker no longer renewed its lease.",
)  # fmt: skip
STALE_WRITES: Final = Metric(
    "trellis_stale_writes_total", "counter", "{attempt}", LANE,
    "Results that were refused because the attempt had ended before.",
)  # fmt: skip
RUNNING: Final = Metric(
    "trellis_attempts_running", "gauge", "{attempt}", LANE, "Handlers that run now."
)
SLOTS: Final = Metric("trellis_slots", "gauge", "{slot}", (), "Handlers that may run at once.")
SETTLEMENTS_WAITING: Final = Metric(
    "trellis_settlements_waiting", "gauge", "{attempt}", (),
    "Ends of attempts that are not stored yet.",
)  # fmt: skip
LOST_THREADS: Final = Metric(
    "trellis_lost_threads", "gauge", "{thread}", (),
    "Threads of handlers that run on although their attempts have ended.",
)  # fmt: skip
LOOP_STALLS: Final = Metric(
    "trellis_loop_stalls_total", "counter", "{stall}", (),
    "How often the event loop made no step for half a second or longer.",
)  # fmt: skip
CALL_DURATION: Final = Metric(
    "trellis_engine_call_seconds", "histogram", "s", ("verb",),
    "How long calls of the engine took.", buckets=_SECONDS,
)  # fmt: skip
CALL_ITEMS: Final = Metric(
    "trellis_engine_call_items", "histogram", "{item}", ("verb",),
    "Jobs or other things in one call of the engine: the sizes of batches.", buckets=_ITEMS,
)  # fmt: skip
CALL_ERRORS: Final = Metric(
    "trellis_engine_errors_total",
    "counter",
    "{call}",
    ("verb",),
    "Calls of the engine that failed.",
)
FEED_LAG: Final = Metric(
    "trellis_feed_lag_seconds", "gauge", "s", (),
    "How old the last change was when the feed returned it to its reader in this process.",
    "feed",
)  # fmt: skip
PROCESSES: Final = Metric(
    "trellis_worker_processes", "gauge", "{process}", (), "Worker processes that claim jobs.",
    "guardian",
)  # fmt: skip
PROCESS_ENDS: Final = Metric(
    "trellis_worker_process_ends_total", "counter", "{process}", ("how",),
    "Worker processes that have ended: as asked (stopped), or not (died).", "guardian",
)  # fmt: skip
JOBS: Final = Metric(
    "trellis_jobs", "gauge", "{job}", (*LANE, "state"),
    "Jobs that wait (pending, retry), run (active) or wait for an operator (dead).", "store",
)  # fmt: skip
OLDEST: Final = Metric(
    "trellis_oldest_due_seconds", "gauge", "s", LANE,
    "How long the job that has waited longest could have started.", "store",
)  # fmt: skip
WORKERS: Final = Metric(
    "trellis_workers", "gauge", "{process}", (),
    "Worker processes whose lease is valid, in the whole store.", "store",
)  # fmt: skip
ENGINE_UP: Final = Metric(
    "trellis_engine_up", "gauge", "1", (),
    "1 if the engine answered this scrape, else 0; then the metrics of the store are missing.",
    "store",
)  # fmt: skip
PROJECTION_LAG: Final = Metric(
    "trellis_projection_lag_seconds", "gauge", "s", ("stream",),
    "How long the first message waits that the projection does not have; only on NATS.", "store",
)  # fmt: skip
PROJECTION_BEHIND: Final = Metric(
    "trellis_projection_lag_messages", "gauge", "{message}", ("stream",),
    "How many messages the projection does not have; only on NATS.", "store",
)  # fmt: skip

METRICS: Final = (
    STARTED, SETTLED, DURATION, WAIT, RETRIES, LEASES_LOST, STALE_WRITES, RUNNING, SLOTS,
    SETTLEMENTS_WAITING, LOST_THREADS, LOOP_STALLS, CALL_DURATION, CALL_ITEMS, CALL_ERRORS,
    FEED_LAG, PROCESSES, PROCESS_ENDS, JOBS, OLDEST, WORKERS, ENGINE_UP,
    PROJECTION_LAG, PROJECTION_BEHIND,
)  # fmt: skip
BY_NAME: Final = {each.name: each for each in METRICS}


def series_names() -> frozenset[str]:
    """Return every name that a query may use: histograms have three each."""
    return frozenset(
        f"{each.name}{suffix}"
        for each in METRICS
        for suffix in (("_bucket", "_sum", "_count") if each.kind == "histogram" else ("",))
    )
