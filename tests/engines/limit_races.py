"""Workers that claim limited jobs at the same time, and a check of what their journals say.

Run as a program with the address of a store, it is one such worker process; with the word
"changing" it changes the rate of the queue while it works.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from itertools import cycle

from trellis.core.durations import SECOND, Instant
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.core.limits import Limit, Override, Rate, Scope
from trellis.core.policy import KeyPolicy
from trellis.engines import make_engine
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.testing.builders import (
    QUEUE,
    SERVICE,
    TYPE,
    a_demand,
    a_job,
    a_keyed_job,
    a_worker,
    complete,
)

SCOPE = Scope("queue", SERVICE, QUEUE)
KEYS = Scope("key", SERVICE, TYPE)
#: Rates that a test changes between, and the larger one: in any window no more may start.
RATES = (
    Limit(rate="40/1s", burst=20),
    Limit(rate="20/1s", burst=20),
    Limit(rate="30/1s", burst=5),
    Limit(rate="10/1s", burst=15),
)
LARGEST = Rate(40, SECOND, 20)
#: After so many jobs the rate is changed.
_EACH = 7


async def prepare(engine: Engine, limit: Limit, jobs: int, scope: Scope = SCOPE) -> list[JobId]:
    """Limit the queue, or the keys, and create jobs in it, of one key."""
    await engine.change_limit(scope, Override(limit, frozenset({"active", "rate"})), By())
    new = [_a_job(scope) for _ in range(jobs)]
    await engine.create(new)
    return [each.id for each in new]


def _a_job(scope: Scope) -> NewJob:
    key = KeyPolicy("user/{id}", 20, None, "wait")
    return a_keyed_job("user/1", key) if scope is KEYS else a_job()


class Changes:
    """Changes a rate under load: when some jobs have started, and when no token is left."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._limits = cycle((*RATES[1:], RATES[0]))
        self._started = 0
        #: How often the rate was changed.
        self.made = 0

    async def after(self, engine: Engine, started: int) -> None:
        """Count jobs that a claim has started; 0: it found no token, or no job."""
        self._started += started
        if self._started >= _EACH or not started:
            self._started = 0
            change = Override(next(self._limits), frozenset({"rate"}))
            await engine.change_limit(self._scope, change, By())
            self.made += 1


async def work(engine: Engine, each: int, changes: Changes | None = None) -> int:
    """Claim and settle jobs until none is left; return how many."""
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    done = empty = 0
    while empty < 15:
        taken = (await engine.claim(session, [a_demand()], each)).jobs
        if changes is not None:
            await changes.after(engine, len(taken))
        if not taken:
            empty += 1
            await engine.promote(100)
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


async def main(address: str, *words: str) -> None:
    engine = make_engine(address)
    await engine.open()
    print("open", flush=True)
    sys.stdin.readline()
    print(await work(engine, 3, Changes(SCOPE) if "changing" in words else None))
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
