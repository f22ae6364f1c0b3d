"""Workers that claim limited jobs at the same time, and a check of what their journals say.

Run as a program with the address of a store, it is one such worker process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

from trellis.core.durations import SECOND, Instant
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId
from trellis.core.lifecycle import Transition, decide
from trellis.core.limits import Limit, Override, Rate, Scope
from trellis.engines import make_engine
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.testing.builders import QUEUE, SERVICE, a_demand, a_job, a_worker, complete

SCOPE = Scope("queue", SERVICE, QUEUE)


async def prepare(engine: Engine, limit: Limit, jobs: int) -> list[JobId]:
    """Limit the queue and create jobs in it."""
    await engine.change_limit(SCOPE, Override(limit, frozenset({"active", "rate"})), By())
    new = [a_job() for _ in range(jobs)]
    await engine.create(new)
    return [each.id for each in new]


async def work(engine: Engine, each: int) -> int:
    """Claim and settle jobs until none is left; return how many."""
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    done = empty = 0
    while empty < 5:
        taken = (await engine.claim(session, [a_demand()], each)).jobs
        if not taken:
            empty += 1
            await asyncio.sleep(0.02)
            continue
        empty = 0
        now = await engine.now()
        decisions = [decide(record, complete(record), now) for record in taken]
        await engine.commit([each for each in decisions if isinstance(each, Transition)])
        done += len(taken)
    return done


async def journals(engine: Engine, ids: Iterable[JobId]) -> list[Event]:
    """Return the events of all these jobs."""
    return [event for job_id in ids for event in await engine.journal(job_id)]


def most_at_once(events: Iterable[Event]) -> int:
    """Return how many attempts ran at the same time, at most; an end comes before a start."""
    steps: list[tuple[Instant, int]] = []
    for event in events:
        if event.kind is EventKind.STARTED:
            steps.append((event.at, 1))
        elif event.kind is EventKind.COMPLETED:
            steps.append((event.at, -1))
    running = most = 0
    for _, step in sorted(steps):
        running += step
        most = max(most, running)
    assert running == 0
    return most


def exceeds(events: Iterable[Event], rate: Rate) -> bool:
    """Return whether any window has more starts than its share of the rate and one burst."""
    starts = sorted(event.at for event in events if event.kind is EventKind.STARTED)
    return any(
        number + 1 > rate.burst + -(-(end - begin) * rate.starts // rate.period)
        for first, begin in enumerate(starts)
        for number, end in enumerate(starts[first:])
    )


async def main(address: str) -> None:
    engine = make_engine(address)
    await engine.open()
    print("open", flush=True)
    sys.stdin.readline()
    print(await work(engine, 3))
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
