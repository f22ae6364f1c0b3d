"""Two versions of one program: the second must decide what happens to the jobs of the first.

1,000 jobs: some wait, some retry, some are dead and replayed, some are clones. The second version
declares another queue, a longer timeout, more attempts and more concurrency.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tests.worker.faulty import eventually
from trellis import ActiveJob, Operator, Retry, Service
from trellis.core.durations import SECOND, to_datetime
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, Page

#: Jobs of each group.
EACH: Final = 250
_SLOTS: Final = 50
#: Longer than the timeout of the first version.
_TAKES: Final = 0.1
_GROUPS: Final = ("retrying", "dead", "clone", "waiting")


class Program:
    """One version: its declarations, and how many handlers ran at the same time."""

    def __init__(self, url: str, **options: Any) -> None:  # noqa: ANN401 - options of a type
        self.service = Service("evolving", url)
        self.running = self.most = 0
        self.fails_until = 0
        self.work = self.service.job(name="work", **options)(self._work)

    async def _work(self, job: ActiveJob[str]) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if job.attempt <= self.fails_until:
                raise ValueError("not yet")
            await asyncio.sleep(_TAKES)
            return job.attempt
        finally:
            self.running -= 1


async def counts(engine: Engine, **tags: str) -> dict[str, int]:
    await engine.catch_up()
    where = JobFilter(tags=tuple(tags.items()))
    return (await engine.count(where, "state")).groups


async def until(engine: Engine, wanted: dict[str, int], **tags: str) -> None:
    async def is_so() -> bool:
        return await counts(engine, **tags) == wanted

    await eventually(is_so, 60)


async def check_that_new_code_decides(url: str) -> None:
    """Run the first version, then the second; see that the second decides about every job."""
    old = Program(
        url, timeout="50ms", retry=Retry.fixed("1h", attempts=2), queue="old", concurrency=3
    )
    old.fails_until = 9
    async with old.service:
        engine = await old.service.connection.engine()
        await _first_version(old, engine)
        new = Program(
            url, timeout="1m", retry=Retry.fixed("10ms", attempts=9), queue="new", concurrency=20
        )
        new.service._connection = old.service.connection  # a memory engine belongs to one object
        new.fails_until = 3
        async with new.service.worker(concurrency=_SLOTS):
            await until(engine, {"completed": len(_GROUPS) * EACH})
        _check_outcomes(await engine.find(JobFilter(), limit=10 * EACH))
    assert old.most <= 3
    assert 3 < new.most <= 20


async def _first_version(old: Program, engine: Engine) -> None:
    """Leave jobs behind that retry, that are dead letters replayed, clones, and that wait."""
    operator = Operator(engine)
    await old.work.create_many(["x"] * EACH, tags={"group": "retrying"})
    await old.work.create_many(["x"] * EACH, tags={"group": "dead"})
    async with old.service.worker(concurrency=_SLOTS):
        await until(engine, {"retry": 2 * EACH})
        await operator.find(tag={"group": "dead"}).adjust(run_at=to_datetime(await engine.now()))
        await until(engine, {"dead": EACH}, group="dead")
    await old.work.create_many(["x"] * EACH, tags={"group": "waiting"})
    await operator.find(tag={"group": "dead"}).clone()
    await operator.find(tag={"group": "dead"}, state="dead").replay()
    await operator.find(tag={"group": "retrying"}).adjust(run_at=to_datetime(await engine.now()))
    assert await counts(engine) == {"pending": 3 * EACH, "retry": EACH}


def _check_outcomes(page: Page) -> None:
    assert len(page.jobs) == len(_GROUPS) * EACH
    for definition, head in page.jobs:
        assert head.state is State.COMPLETED
        assert definition.queue == "old"  # where it waited: nothing was stranded
        assert definition.policy.timeout == 60 * SECOND
        assert definition.policy.retry.attempts == 9
        assert head.attempt == 4  # three failures; the first version allowed one
