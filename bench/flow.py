"""`make bench-flow`: what limits and tenants cost a drain, and one large batch, on both engines.

The engine alone claims and completes pages of 100, in turns, so read the ratios:

- a queue with a limit beside one without;
- claims while 100,000 jobs of another type wait behind a limit that is used up;
- claims of jobs of 10,000 tenants that share a queue;
- a batch of 300,000 members: when its fan-in job starts, and the memory of creator and worker. (Of
  fewer, the caches of SQLite fill until the end.)
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench import batches
from bench.peers import server as servers
from bench.peers import store
from trellis import control
from trellis.core.commands import Complete
from trellis.core.durations import SECOND
from trellis.core.job import JobRecord, Relations
from trellis.core.limits import Limit, Scope
from trellis.engines import make_engine
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.testing.builders import SERVICE, a_job, a_worker

_PAGE: Final = 100
_LEASE: Final = 3600 * SECOND
_FREE, _LIMITED, _STUCK = "free", "limited", "stuck"
#: A limit that is checked and counted in every claim, and never reached.
_WIDE: Final = Limit(active=1_000_000, rate="800000000/1d")
#: A drain with a limit must reach this part of one without; claims may grow by that factor.
LEAST_SHARE: Final = 0.6
MOST_GROWTH: Final = 1.5


class Sizes(NamedTuple):
    """How much is measured."""

    rounds: int = 5
    jobs: int = 10_000
    blocked: int = 100_000
    tenants: int = 10_000
    members: int = 300_000


QUICK: Final = Sizes(1, 400, 500, 50, 200)
#: Makes the URL of a new, empty store.
Place = Callable[[], str]


class Ratio(NamedTuple):
    """One figure beside the one it is compared with: medians of all rounds."""

    name: str
    plain: float
    measured: float
    unit: str
    bar: str
    holds: bool

    def __str__(self) -> str:
        verdict = "PASS" if self.holds else "MISS"
        figures = f"{self.plain:,.5g} → {self.measured:,.5g} {self.unit}"
        return f"{verdict}  {self.name}: {figures}, {self.measured / self.plain:.2f} ({self.bar})"


async def _fill(engine: Engine, kind: str, jobs: int, tenants: int = 0) -> None:
    for start in range(0, jobs, 1000):
        await engine.create(
            [
                a_job(
                    type=kind,
                    queue=kind,
                    relations=Relations(tenant=f"tenant-{number % tenants}" if tenants else None),
                )
                for number in range(start, min(start + 1000, jobs))
            ]
        )


async def _drain(engine: Engine, kinds: Sequence[str], jobs: int) -> list[float]:
    """Claim and complete this many jobs; return what each claim took, in milliseconds."""
    session = (await engine.open_session(a_worker(), _LEASE)).id
    demands = [Demand(SERVICE, (kind,), _PAGE) for kind in kinds]
    claims = []
    while jobs > 0:
        began = time.perf_counter()
        found = await engine.claim(session, demands, min(_PAGE, jobs))
        claims.append(1000 * (time.perf_counter() - began))
        await control.apply_all(engine, [(each, _end(each)) for each in found.jobs], found.now)
        jobs -= len(found.jobs)
    await engine.close_session(session)
    return claims


def _end(record: JobRecord) -> Complete:
    assert record.head.fence is not None
    return Complete(record.head.fence)


async def _with_engine(url: str, measure: Callable[[Engine], Awaitable[float]]) -> float:
    engine = make_engine(url)
    await engine.migrate()
    await engine.open()
    try:
        return await measure(engine)
    finally:
        await engine.close()


def _limit_costs(place: Place, sizes: Sizes) -> Ratio:
    async def rate(engine: Engine, kind: str) -> float:
        await engine.declare_limits([(Scope("queue", SERVICE, _LIMITED), _WIDE)])
        await _fill(engine, kind, sizes.jobs)
        began = time.perf_counter()
        await _drain(engine, [kind], sizes.jobs)
        return sizes.jobs / (time.perf_counter() - began)

    rates: dict[str, list[float]] = {_FREE: [], _LIMITED: []}
    for _ in range(sizes.rounds):
        for kind, rounds in rates.items():
            rounds.append(asyncio.run(_with_engine(place(), partial(rate, kind=kind))))
    plain, limited = (statistics.median(rounds) for rounds in rates.values())
    holds = limited >= LEAST_SHARE * plain
    return Ratio("drain of a limited queue", plain, limited, "jobs/s", "bar 0.6", holds)


def _blocked_costs(place: Place, sizes: Sizes) -> Ratio:
    async def claim_time(engine: Engine, blocked: int) -> float:
        await engine.declare_limits([(Scope("type", SERVICE, _STUCK), Limit(active=1))])
        await _fill(engine, _STUCK, blocked)
        session = (await engine.open_session(a_worker(), _LEASE)).id
        taken = await engine.claim(session, [Demand(SERVICE, (_STUCK,), 5)], 5)
        assert len(taken.jobs) == 1, f"the limit of one let {len(taken.jobs)} jobs start"
        await _fill(engine, _FREE, sizes.jobs)
        return statistics.median(await _drain(engine, [_STUCK, _FREE], sizes.jobs))

    return _compare_claims(
        place, sizes, f"claims beside {sizes.blocked:,} blocked jobs", claim_time, sizes.blocked
    )


def _tenant_costs(place: Place, sizes: Sizes) -> Ratio:
    async def claim_time(engine: Engine, tenants: int) -> float:
        await _fill(engine, _FREE, sizes.jobs, tenants)
        return statistics.median(await _drain(engine, [_FREE], sizes.jobs))

    return _compare_claims(
        place, sizes, f"claims of {sizes.tenants:,} tenants", claim_time, sizes.tenants
    )


def _compare_claims(
    place: Place,
    sizes: Sizes,
    name: str,
    claim_time: Callable[[Engine, int], Awaitable[float]],
    many: int,
) -> Ratio:
    times: dict[int, list[float]] = {1: [], many: []}
    for _ in range(sizes.rounds):
        for number, rounds in times.items():

            async def measured_time(engine: Engine, number: int = number) -> float:
                return await claim_time(engine, number)

            rounds.append(asyncio.run(_with_engine(place(), measured_time)))
    plain, measured = (statistics.median(rounds) for rounds in times.values())
    holds = measured <= MOST_GROWTH * plain
    return Ratio(name, plain, measured, "ms", f"bar {MOST_GROWTH}", holds)


def measure(place: Place, sizes: Sizes) -> bool:
    """Measure everything on one engine and print it; return whether all bars are reached."""
    held = True
    for costs in (_limit_costs, _blocked_costs, _tenant_costs):
        ratio = costs(place, sizes)
        held &= ratio.holds
        print(f"  {ratio}", flush=True)
    figures = batches.measure(place(), sizes.members)
    print(f"  {'PASS' if figures.is_good else 'MISS'}  {figures}", flush=True)
    return held and figures.is_good


@contextmanager
def _sqlite() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        names = iter(range(10_000))
        yield lambda: f"sqlite:///{Path(folder) / f'{next(names)}.db'}"


@contextmanager
def _postgres() -> Iterator[Place]:
    with servers.running() as server:
        names = iter(range(10_000))
        yield lambda: store.make_database(server, f"flow_{next(names)}")


def main() -> int:
    """Measure on both engines."""
    parser = argparse.ArgumentParser(prog="python -m bench.flow", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--on", choices=("sqlite", "postgres"), help="only on this engine")
    given = parser.parse_args()
    sizes = QUICK if given.quick else Sizes()
    held = True
    for name, places in (("sqlite", _sqlite), ("postgres", _postgres)):
        if given.on in (None, name):
            print(f"{name}:", flush=True)
            with places() as place:
                held &= measure(place, sizes)
    if given.quick:
        print("A quick run tries everything out; it is too short for its rates to count.")
    return 0 if held or given.quick else 1


if __name__ == "__main__":
    sys.exit(main())
