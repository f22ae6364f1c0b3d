"""A steady load: jobs are created, claimed and completed a hundred at a time, and timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeVar

import psycopg

from tests.engines.postgres.steps import opened
from tests.harness.age.meter import Cost, Meter, complete
from trellis.engines.postgres import PostgresEngine
from trellis.testing.builders import a_demand, a_job

T = TypeVar("T")
BATCH: Final = 100
#: Every so many claims the server is asked what one cost.
_LOOK_EVERY: Final = 10
#: As workers do with the usual lease, in seconds.
_RENEW_EVERY: Final = 5.0


@dataclass
class Window:
    """What was seen in a while."""

    claims: list[float] = field(default_factory=list)
    completions: list[float] = field(default_factory=list)
    renewals: list[float] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def pages(self) -> float:
        """Pages that a claim touched, mostly."""
        return median(cost.pages for cost in self.costs)

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return BATCH * len(self.completions) / self.seconds

    def line(self) -> str:
        """Say it in a line."""
        claims, completions = (
            f"{1000 * part(each, 0.5):.1f} / {1000 * part(each, 0.99):.1f} ms"
            for each in (self.claims, self.completions)
        )
        return (
            f"claim {claims}, completion {completions} (p50 / p99), {self.pages:,.0f} pages a "
            f"claim, renewal {1000 * max(self.renewals):.0f} ms at most, {self.rate:,.0f} jobs/s"
        )


def part(times: list[float], share: float) -> float:
    """Return the time that this share did not exceed."""
    return sorted(times)[int(share * (len(times) - 1))]


@dataclass
class Load:
    """A producer and a worker, each with an engine of its own."""

    producer: PostgresEngine
    meter: Meter
    rate: float

    async def run(self, seconds: float) -> Window:
        """Work for a while, at most at the rate; return what was seen."""
        window, began = Window(), time.monotonic()
        while (spent := time.monotonic() - began) < seconds:
            if spent >= len(window.renewals) * _RENEW_EVERY:
                session = self.meter.session
                await _timed(window.renewals, self.producer.renew(session, []))
            await self._round(window)
            ahead = len(window.completions) * BATCH / self.rate - spent
            if ahead > 0:
                await asyncio.sleep(ahead)
        window.seconds = time.monotonic() - began
        return window

    async def _round(self, window: Window) -> None:
        engine, session = self.meter.engine, self.meter.session
        await self.producer.create([a_job() for _ in range(BATCH)])
        if len(window.claims) % _LOOK_EVERY == 0:
            cost, claimed = await self.meter.claim(BATCH)
            window.costs.append(cost)
            await complete(engine, claimed)
        demand = [a_demand(limit=BATCH)]
        claimed = await _timed(window.claims, engine.claim(session, demand, BATCH))
        await _timed(window.completions, complete(engine, claimed))


async def _timed(times: list[float], call: Awaitable[T]) -> T:
    began = time.perf_counter()
    result = await call
    times.append(time.perf_counter() - began)
    return result


@asynccontextmanager
async def a_load(url: str, rate: float) -> AsyncIterator[Load]:
    """Have a producer and a worker for a while."""
    with psycopg.connect(url, autocommit=True) as sql:
        async with opened(url) as producer, opened(url) as worker:
            yield Load(producer, await Meter.of(worker, sql), rate)
