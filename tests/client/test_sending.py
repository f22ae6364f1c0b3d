"""Creating jobs while the engine has trouble: a reply that was lost makes no second job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trellis import Job, Service
from trellis.core.job import JobId, NewJob
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import CreateResult, JobFilter
from trellis.errors import (
    DiskFull,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
)

FOREVER = 1000


class TroubledEngine(MemoryEngine):
    """Raises what it is given, one error per call; only a lost reply comes after storing."""

    def __init__(self, *errors: EngineError, works_first: int = 0) -> None:
        super().__init__()
        self.errors = list(errors)
        self.works_first = works_first
        self.calls = 0

    async def create(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        self.calls += 1
        if self.calls <= self.works_first or not self.errors:
            return await super().create(jobs)
        error = self.errors.pop(0)
        if isinstance(error, OutcomeUnknown):
            await super().create(jobs)
        raise error


def job_on(engine: MemoryEngine) -> Job[int, int]:
    service = Service("shop", "memory://")
    service.connection._own._resident = engine
    return service.declare("count", payload=int, result=int)


async def stored(engine: MemoryEngine) -> int:
    return sum((await engine.count(JobFilter(), "state")).groups.values())


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.client.sending._PAUSES", (0, 0, 0))


@pytest.mark.parametrize("trouble", [OutcomeUnknown, EngineBusy, EngineUnavailable])
async def test_a_lost_reply_or_a_busy_engine_makes_one_job(trouble: type[EngineError]) -> None:
    engine = TroubledEngine(trouble("not now"), trouble("not now either"))
    ref = await job_on(engine).create(1)
    assert await stored(engine) == 1
    assert (await engine.load([JobId(ref.id)])).records[0] is not None


async def test_a_lost_reply_to_many_makes_each_job_once() -> None:
    engine = TroubledEngine(OutcomeUnknown("not now"))
    refs = await job_on(engine).create_many(range(700))
    assert (len(refs), await stored(engine)) == (700, 700)


@pytest.mark.parametrize("trouble", [DiskFull, EngineClosed])
async def test_what_will_not_pass_by_itself_is_raised_at_once(trouble: type[EngineError]) -> None:
    engine = TroubledEngine(trouble("no"))
    with pytest.raises(trouble):
        await job_on(engine).create(1)
    assert engine.calls == 1


async def test_an_engine_that_stays_away_is_not_asked_for_ever() -> None:
    engine = TroubledEngine(*[EngineBusy("not now")] * FOREVER)
    with pytest.raises(EngineBusy):
        await job_on(engine).create(1)
    assert engine.calls == 4


async def test_a_doubt_stays_a_doubt_when_later_tries_store_nothing() -> None:
    engine = TroubledEngine(OutcomeUnknown("who knows"), *[EngineBusy("not now")] * FOREVER)
    with pytest.raises(OutcomeUnknown) as raised:
        await job_on(engine).create(1)
    assert isinstance(raised.value.__cause__, EngineBusy)


async def test_a_failure_in_the_middle_of_many_says_how_many_were_accepted() -> None:
    engine = TroubledEngine(DiskFull("no"), works_first=2)
    with pytest.raises(DiskFull) as raised:
        await job_on(engine).create_many(range(2200))
    assert raised.value.__notes__ == ["2000 of 2200 jobs were accepted."]
    assert await stored(engine) == 2000
