"""What telemetry costs: the same drain without it, with metrics, and with traces, in turns.

Run as `python -m bench.telemetry [--jobs 30000] [--rounds 5]`. Each turn is a new SQLite file and a
`trellis worker` with default settings. Ratios are taken within each round and their median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from bench.app import drains, make_orders, noop
from bench.journal import Journal
from bench.programs import running
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import QueueSettings

#: The least ratio to a drain without telemetry.
BAR: Final = 0.95
_PAGE: Final = 1000


class Way(NamedTuple):
    """A way to run the worker."""

    name: str
    program: str
    options: tuple[str, ...]
    #: Which share of the jobs is in a sampled trace.
    sampled: float
    is_judged: bool = True


OFF: Final = Way("off", "bench.app:drains", (), 0.01)
WAYS: Final = (
    OFF,
    Way("metrics", "bench.app:drains", ("--health-port", "0"), 0.01),
    Way("otel, 1 trace in 1,000", "bench.telemetry_app:drains", ("--health-port", "0"), 0.001),
    Way("otel, 1 trace in 100", "bench.telemetry_app:drains", (), 0.01, is_judged=False),
    Way("otel, every trace", "bench.telemetry_app:drains", (), 1.0, is_judged=False),
)


def measure(jobs: int, rounds: int) -> dict[Way, list[float]]:
    """Return the jobs per second of each way in each round."""
    found: dict[Way, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            with tempfile.TemporaryDirectory() as folder:
                found[way].append(_drain(Path(folder), way, jobs))
    return found


def ratios(found: dict[Way, list[float]]) -> dict[Way, float]:
    """Return the median ratio of each way to a drain without telemetry in the same round."""
    return {
        way: statistics.median(rate / off for rate, off in zip(rates, found[OFF], strict=True))
        for way, rates in found.items()
    }


def _drain(folder: Path, way: Way, jobs: int) -> float:
    path = folder / "jobs.db"
    drains.connection.point_at(f"sqlite:///{path}")
    asyncio.run(_fill(jobs, way.sampled))
    asyncio.run(_set_paused(path, paused=True))
    words = ["-m", "trellis", "worker", way.program, "--url", f"sqlite:///{path}", *way.options]
    with running(words, folder, signal.SIGTERM) as worker, closing(Journal(path)) as journal:
        worker.wait_until(lambda: journal.workers() == 1, "its process was up")
        asyncio.run(_set_paused(path, paused=False))
        worker.wait_until(journal.is_drained, "the last job was settled")
        return journal.drain_rate(jobs)


async def _fill(jobs: int, sampled: float) -> None:
    """Create jobs; in each page the first ones are in a sampled trace."""
    span = NonRecordingSpan(SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(1)))
    orders = make_orders(jobs)
    async with drains:
        for start in range(0, jobs, _PAGE):
            page = orders[start : start + _PAGE]
            first = round(len(page) * sampled)
            with trace.use_span(span):
                await noop.create_many(page[:first])
            await noop.create_many(page[first:])


async def _set_paused(path: Path, *, paused: bool) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    try:
        await engine.set_queue(QueueSettings("bench", "noop", paused=paused))
    finally:
        await engine.close()


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found = measure(given.jobs, given.rounds)
    compared = ratios(found)
    for way, ratio in compared.items():
        rate = statistics.median(found[way])
        bar = f", at least {BAR:g} is wanted" if way.is_judged and way is not OFF else ""
        print(f"{way.name:24} {rate:10,.0f} jobs/s {ratio:6.2f} of off{bar}")
    return 0 if all(ratio >= BAR for way, ratio in compared.items() if way.is_judged) else 1


if __name__ == "__main__":
    sys.exit(main())
