"""How much is measured: 100,000 jobs per process and drain, or a few jobs to try everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Sizes:
    """Jobs and seconds per figure and round.

    What is slow is measured for a time: the rate of what was done by then counts.
    """

    rounds: int
    #: How long single jobs are created, by one caller and by many.
    seconds: float
    #: Jobs by bulk calls, and how long that may take.
    many: int
    many_seconds: float
    #: Jobs of a drain per worker process, and how long it may take from the first handler's start;
    #: a system that has not begun half of them in half of that time is stopped there.
    drain: int
    drain_seconds: float
    #: Jobs that wait behind those of a drain.
    backlog: int
    #: Latencies that count, after as many as it takes to warm up.
    latencies: int
    warm_up: int
    #: How long a worker has had nothing to do before its memory is read.
    rest: float


FULL: Final = Sizes(
    rounds=3, seconds=3.0, many=100_000, many_seconds=4.0, drain=100_000, drain_seconds=10.0,
    backlog=500_000, latencies=500, warm_up=25, rest=1.0,
)  # fmt: skip
QUICK: Final = Sizes(
    rounds=1, seconds=0.2, many=500, many_seconds=1.0, drain=300, drain_seconds=3.0,
    backlog=500, latencies=10, warm_up=2, rest=0.1,
)  # fmt: skip
