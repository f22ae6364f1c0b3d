"""How much is measured: enough for steady rates in under four minutes, or a few jobs to try it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CALLERS: Final = 32
#: What the floor does in one transaction, as the statements of its drain were measured first.
BATCH: Final = 100
#: What one call of `create_many` sends in one transaction.
PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Jobs and seconds per figure and round.

    What waits for the disk once per job is measured for a time, not for a number of jobs: one sync
    takes a tenth of a millisecond here and five there.
    """

    rounds: int
    #: How long single jobs are created, by one caller and by many.
    seconds: float
    #: Jobs of one `create_many`, of the floor, and of a drain at least.
    many: int
    #: Backlog of Huey, and how long it may take to drain: its rate depends on neither.
    huey: int
    huey_seconds: float
    #: Latencies that count, after as many as it takes to warm up.
    latencies: int
    warm_up: int
    #: Jobs for the engine through its port.
    port: int


FULL: Final = Sizes(
    rounds=5, seconds=0.8, many=30_000, huey=20_000, huey_seconds=2.5, latencies=100, warm_up=10,
    port=8_000,
)  # fmt: skip
QUICK: Final = Sizes(
    rounds=1, seconds=0.2, many=1_000, huey=500, huey_seconds=1.0, latencies=10, warm_up=2,
    port=500,
)  # fmt: skip
