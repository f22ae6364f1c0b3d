"""Submission: tries are repeated safely, and single jobs are stored together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from trellis import Accepted, Coalesced, Job, JobRef, Service, State
from trellis.core.job import JobId, NewJob
from trellis.engines.audit import By
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import CreateResult, JobFilter
from trellis.errors import (
    DiskFull,
    EngineBlocked,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    PayloadInvalid,
)

FOREVER = 1000


class TroubledEngine(MemoryEngine):
    """Raises what it is given, one error per call; only a lost reply comes after storing."""

    def __init__(self, *errors: EngineError, works_first: int = 0) -> None:
        super().__init__()
        self.errors = list(errors)
        self.works_first = works_first
        self.calls = 0

    async def create(
        self,
        jobs: Sequence[NewJob],
        by: By | None = None,
    ) -> list[CreateResult]:
        self.calls += 1
        if self.calls <= self.works_first or not self.errors:
            return await super().create(jobs)
        error = self.errors.pop(0)
        if isinstance(error, OutcomeUnknown):
            await super().create(jobs)
        raise error


def job_on(engine: MemoryEngine) -> Job[int, int]:
    service = Service("shop", "memory://")
    service.connection._own._shared_engine = engine
    return service.declare("count", payload=int, result=int)


async def stored(engine: MemoryEngine) -> int:
    return (await engine.count(JobFilter())).total


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.client.submission._PAUSES", (0, 0, 0))


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


@pytest.mark.parametrize("trouble", [DiskFull, EngineBlocked, EngineClosed])
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


async def test_an_engine_that_has_waited_long_by_itself_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trellis.client.submission._LONGEST", 0)
    engine = TroubledEngine(EngineUnavailable("no quorum"))
    with pytest.raises(EngineUnavailable):
        await job_on(engine).create(1)
    assert engine.calls == 1


async def test_a_doubt_stays_a_doubt_when_later_tries_store_nothing() -> None:
    engine = TroubledEngine(OutcomeUnknown("perhaps stored"), *[EngineBusy("not now")] * FOREVER)
    with pytest.raises(OutcomeUnknown) as raised:
        await job_on(engine).create(1)
    assert isinstance(raised.value.__cause__, EngineBusy)


async def test_a_failure_in_the_middle_of_many_says_how_many_were_accepted() -> None:
    engine = TroubledEngine(DiskFull("no"), works_first=2)
    with pytest.raises(DiskFull) as raised:
        await job_on(engine).create_many(range(2200))
    assert raised.value.__notes__ == ["2000 of 2200 jobs were accepted."]
    assert await stored(engine) == 2000


UNSTORABLE = 13


class WatchedEngine(MemoryEngine):
    """Notes the payloads of each call, waits at its gate, and cannot store one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.error: Exception | None = None

    async def create(
        self,
        jobs: Sequence[NewJob],
        by: By | None = None,
    ) -> list[CreateResult]:
        page = [json.loads(new.payload) for new in jobs]
        self.pages.append(page)
        self.called.set()
        await self.gate.wait()
        if UNSTORABLE in page:
            raise PayloadInvalid("The engine cannot store this.")
        error, self.error = self.error, None
        if error is not None and not isinstance(error, OutcomeUnknown):
            raise error
        results = await super().create(jobs)
        if error is not None:
            raise error
        return results

    async def payloads(self) -> list[int]:
        page = await self.find(JobFilter(), limit=1000)
        return sorted(json.loads(record.definition.payload) for record in page.jobs)


@pytest.fixture
async def engine() -> WatchedEngine:
    return WatchedEngine()


@pytest.fixture
def service(engine: WatchedEngine) -> Service:
    service = Service("shop", "memory://")
    service.connection._own._shared_engine = engine
    return service


@pytest.fixture
async def count(service: Service) -> Job[int, int]:
    await service.connection.engine()
    return service.declare("count", payload=int, result=int)


async def payload_of(engine: MemoryEngine, ref: JobRef[int]) -> int:
    (record,) = (await engine.load([JobId(ref.id)])).records
    assert record is not None
    return int(record.definition.payload)


async def test_jobs_created_at_once_are_sent_in_one_call(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    await asyncio.gather(*(count.create(number) for number in range(10)))
    assert engine.pages == [list(range(10))]


async def test_each_caller_gets_the_answer_to_his_own_job(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    refs = await asyncio.gather(*(count.create(number) for number in range(20, 50)))
    assert [await payload_of(engine, ref) for ref in refs] == list(range(20, 50))


async def test_while_one_page_is_on_its_way_the_next_one_fills(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    engine.gate.clear()
    first = asyncio.create_task(count.create(1))
    await engine.called.wait()
    others = [asyncio.create_task(count.create(number)) for number in (2, 3, 4)]
    for _ in range(5):
        await asyncio.sleep(0)  # lets every task run that is ready
    assert engine.pages == [[1]]
    engine.gate.set()
    await asyncio.gather(first, *others)
    assert engine.pages == [[1], [2, 3, 4]]


async def test_jobs_created_one_after_the_other_go_one_by_one(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    for number in (1, 2, 3):
        await count.create(number)
    assert engine.pages == [[1], [2], [3]]


async def test_more_than_a_page_goes_in_several(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    await asyncio.gather(*(count.create(number) for number in range(100, 701)))
    assert [len(page) for page in engine.pages] == [500, 101]


async def test_one_bad_job_among_many_fails_only_its_own_caller(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    answers = await asyncio.gather(
        *(count.create(number) for number in range(50)), return_exceptions=True
    )
    bad = [each for each in answers if not isinstance(each, JobRef)]
    assert bad == [answers[UNSTORABLE]]
    assert isinstance(bad[0], PayloadInvalid)
    assert await engine.payloads() == [each for each in range(50) if each != UNSTORABLE]
    assert len(engine.pages) < 20  # halves, not one call each


async def test_a_cancelled_caller_cancels_no_other(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    engine.gate.clear()
    tasks = [asyncio.create_task(count.create(number)) for number in range(5)]
    await engine.called.wait()
    tasks[0].cancel()
    tasks[3].cancel()
    await asyncio.wait([tasks[0], tasks[3]])
    engine.gate.set()
    refs = await asyncio.gather(tasks[1], tasks[2], tasks[4])
    assert [await payload_of(engine, ref) for ref in refs] == [1, 2, 4]
    assert tasks[0].cancelled()
    assert tasks[3].cancelled()


async def test_a_caller_cancelled_before_his_job_was_sent_has_created_nothing(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    engine.gate.clear()
    first = asyncio.create_task(count.create(1))
    await engine.called.wait()
    second, third = (asyncio.create_task(count.create(number)) for number in (2, 3))
    await asyncio.sleep(0)  # let them begin
    second.cancel()
    engine.gate.set()
    await asyncio.gather(first, third)
    assert await engine.payloads() == [1, 3]


async def test_a_caller_cancelled_before_he_knew_that_he_is_alone_has_created_nothing(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    alone = asyncio.create_task(count.create(1))
    await asyncio.sleep(0)  # let it begin
    alone.cancel()
    await asyncio.wait([alone])
    await count.create(2)
    assert (alone.cancelled(), engine.pages) == (True, [[2]])


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
async def test_however_a_lone_caller_ends_those_who_came_after_him_are_sent(
    engine: WatchedEngine, count: Job[int, int], ending: str
) -> None:
    engine.gate.clear()
    engine.error = DiskFull("full") if ending == "failed" else None
    first = asyncio.create_task(count.create(1))
    await engine.called.wait()
    others = [asyncio.create_task(count.create(number)) for number in (2, 3)]
    await asyncio.sleep(0)  # let them begin
    if ending == "cancelled":
        first.cancel()
        await asyncio.wait([first])
    engine.gate.set()
    await asyncio.gather(*others)
    await asyncio.wait([first])
    assert (engine.pages, await engine.payloads()) == ([[1], [2, 3]], [2, 3])


@pytest.mark.parametrize("error", [DiskFull("full"), EngineClosed("closed")])
async def test_an_engine_that_fails_fails_every_caller_and_may_work_again(
    engine: WatchedEngine, count: Job[int, int], error: Exception
) -> None:
    engine.error = error
    answers = await asyncio.gather(
        *(count.create(number) for number in range(5)), return_exceptions=True
    )
    assert [type(each) for each in answers] == [type(error)] * 5
    await count.create(7)
    assert await engine.payloads() == [7]


async def test_a_lost_reply_to_a_page_makes_each_job_once(
    engine: WatchedEngine, count: Job[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.client.submission._PAUSES", (0,))
    engine.error = OutcomeUnknown("lost")
    await asyncio.gather(*(count.create(number) for number in range(5)))
    assert await engine.payloads() == list(range(5))
    assert len(engine.pages) == 2


async def test_a_job_with_a_mark_goes_alone(engine: WatchedEngine, count: Job[int, int]) -> None:
    await count.create(1, dedupe="same")
    answers = await asyncio.gather(
        count.submit(2), count.submit(3, dedupe="same"), count.submit(4, idempotency_key="k")
    )
    assert [type(each) for each in answers] == [Accepted, Coalesced, Accepted]
    assert sorted(engine.pages) == [[1], [2], [3], [4]]


@pytest.mark.parametrize(("ahead", "waiting"), [(1, 2), (2, 0), (2, 3)])
async def test_closing_waits_for_pages_on_their_way_and_behind_them(
    engine: WatchedEngine, service: Service, count: Job[int, int], ahead: int, waiting: int
) -> None:
    engine.gate.clear()
    first = [asyncio.create_task(count.create(number)) for number in range(ahead)]
    await engine.called.wait()
    others = [asyncio.create_task(count.create(number)) for number in range(5, 5 + waiting)]
    await asyncio.sleep(0)  # let them begin
    closing = asyncio.create_task((await service.connection.batcher()).close())
    for _ in range(5):
        await asyncio.sleep(0)  # lets every task run that is ready
    assert not closing.done()
    engine.gate.set()
    await closing
    assert len(await engine.payloads()) == len(first) + len(others)
    await asyncio.gather(*first, *others)


@pytest.mark.parametrize("callers", [1, 3])
async def test_closing_sends_what_was_asked_for_first(tmp_path: Path, callers: int) -> None:
    service = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")
    count = service.declare("count", payload=int, result=int)
    async with service:
        created = [asyncio.create_task(count.create(number)) for number in range(callers)]
        await asyncio.sleep(0)  # let them begin
    refs = await asyncio.gather(*created)
    async with service:
        assert [(await ref.status()).state for ref in refs] == [State.PENDING] * callers


async def test_no_caller_waits_for_a_sender_that_was_cancelled(
    engine: WatchedEngine, count: Job[int, int]
) -> None:
    engine.gate.clear()
    created = [asyncio.create_task(count.create(number)) for number in range(3)]
    await engine.called.wait()
    (sender,) = (task for task in asyncio.all_tasks() if task.get_name() == "trellis-batch")
    sender.cancel()
    await asyncio.wait(created)
    assert all(task.cancelled() for task in created)
    engine.gate.set()
    await count.create(4)
    assert await engine.payloads() == [4]
