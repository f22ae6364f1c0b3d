"""Storing outcomes: nothing is dropped, and one bad outcome does not take others with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tests.worker.faulty import FaultyEngine, eventually
from tests.worker.test_leases import create, kinds, record, service_of, worker
from trellis import ActiveJob, PerKey, Retry, control
from trellis.client.requests import new_job
from trellis.config import WorkerSettings
from trellis.core.commands import Cancel
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.core.lifecycle import Transition
from trellis.core.states import State
from trellis.engines.values import CommitResult
from trellis.errors import EngineError, OutcomeUnknown, ReadOnlyDatabase
from trellis.worker import settler
from trellis.worker.fetcher import BATCH

FOR_HOURS = WorkerSettings().with_options(lease="3h", poll="20ms", grace="1s")


async def test_one_outcome_that_cannot_be_stored_fails_alone() -> None:
    async def echo(number: int) -> int:
        return number

    service = service_of(echo)
    engine = FaultyEngine()
    engine.refused_result = "7"
    ids = [await create(engine, service.find("echo"), number) for number in range(20)]
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == 20)
    records = [await record(engine, job_id) for job_id in ids]
    assert [each.head.state for each in records].count(State.COMPLETED) == 19
    offender = records[7].head
    assert offender.state is State.FAILED
    assert offender.error is not None
    assert offender.error.code == "unstorable"
    assert "cannot store 7" in offender.error.message


async def test_a_worker_does_not_claim_faster_than_outcomes_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settler, "MOST_WAITING", 500)
    ran, total = 0, 6000
    ahead: list[int] = []

    class SlowEngine(FaultyEngine):
        async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
            for _ in range(200):  # claims and handlers go on meanwhile
                await asyncio.sleep(0)
            ahead.append(ran - supervisor.settled)
            return await super().commit(transitions)

    async def echo(number: int) -> int:
        nonlocal ran
        ran += 1
        return number

    service = service_of(echo)
    engine = SlowEngine()
    job_type = service.find("echo").job_type
    await engine.create([new_job(job_type, number) for number in range(total)])
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == total)
    # Those that wait, a batch that is being stored, and a claim with what was claimed ahead.
    assert 500 <= max(ahead) <= 500 + 4 * BATCH


@pytest.mark.parametrize(("delay", "words"), [("1s", "1 s"), ("10s", "10 s"), ("1h", "1 h")])
async def test_the_log_says_when_the_next_try_is(
    delay: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(number: int) -> int:
        await asyncio.sleep(0.01)  # the delay counts from the end of the attempt
        raise ValueError(number)

    service = service_of(fail, retry=Retry.fixed(delay))
    engine = FaultyEngine()
    await create(engine, service.find("fail"), 7)
    async with worker(engine, service):
        await eventually(lambda: "Next try in" in caplog.text)
    assert f"ValueError: 7. Next try in {words}." in caplog.text


@pytest.mark.parametrize("fault", [MemoryError, OSError, RuntimeError])
async def test_an_unexpected_exception_while_storing_is_tried_again(
    fault: type[Exception],
) -> None:
    async def echo(number: int) -> int:
        return number

    service = service_of(echo, retry=Retry.never())
    engine = FaultyEngine()
    engine.commit_faults = [fault("not now"), fault("not now either")]
    job_id = await create(engine, service.find("echo"), 7)
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == 1)
    assert (await record(engine, job_id)).head.state is State.COMPLETED
    (outcome,) = await engine.outcomes(job_id)
    assert outcome.result == "7"


async def test_an_outcome_that_cannot_be_stored_is_handed_back_and_the_others_are_stored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settler, "_RETRY_PAUSES", (0.001,))

    async def echo(number: int) -> int:
        return number

    service = service_of(echo, retry=Retry.never(), on_shutdown="fail", on_lost="fail")
    engine = FaultyEngine()
    engine.breaking = "7", RuntimeError("no thread can be started")
    ids = [await create(engine, service.find("echo"), number) for number in range(20)]
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == 20)
        ids.append(await create(engine, service.find("echo"), 20))
        await eventually(lambda: supervisor.settled == 21)
    records = [await record(engine, job_id) for job_id in ids]
    assert [each.head.state for each in records].count(State.COMPLETED) == 20
    returned = records[7].head
    assert returned.state is State.RETRY
    assert (returned.attempt, returned.claims, returned.error) == (0, 1, None)
    assert "handed back: RuntimeError: no thread can be started" in caplog.text


async def test_a_hand_back_that_cannot_be_stored_either_is_tried_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settler, "_RETRY_PAUSES", (0.001,))
    monkeypatch.setattr(settler, "_HAND_BACK_DELAY", SECOND // 100)

    async def echo(number: int) -> int:
        return number

    service = service_of(echo, retry=Retry.never(), on_lost="fail")
    engine = FaultyEngine()
    engine.commit_faults = [MemoryError(f"for the {number}th time") for number in range(30)]
    job_id = await create(engine, service.find("echo"), 7)
    async with worker(engine, service):
        await eventually(lambda: _has_ended(engine, job_id))
    assert not engine.commit_faults
    assert await kinds(engine, job_id) == ["created", "started", "retry", "started", "completed"]


async def test_a_key_stays_taken_when_a_handler_that_runs_on_is_handed_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settler, "_RETRY_PAUSES", (0.001,))
    go_on = threading.Event()
    begun: list[str] = []

    def work(name: str) -> None:
        begun.append(name)
        if name == "first":
            go_on.wait(20)

    options = {"per_key": PerKey.in_turn("only"), "timeout": "10ms", "retry": Retry.never()}
    service = service_of(work, **options)  # type: ignore[arg-type]
    engine = FaultyEngine()
    engine.commit_faults = [RuntimeError("not now")] * settler._TRIES
    async with worker(engine, service, FOR_HOURS) as supervisor:
        first = await create(engine, service.find("work"), "first")
        await eventually(lambda: begun == ["first"])
        second = await create(engine, service.find("work"), "second")
        await eventually(lambda: supervisor.settled == 1)
        assert (await record(engine, first)).head.state is State.RETRY
        assert begun == ["first"]
        go_on.set()
        await eventually(lambda: _has_ended(engine, second))


async def _has_ended(engine: FaultyEngine, job_id: JobId) -> bool:
    return (await record(engine, job_id)).head.state is State.COMPLETED


async def test_notes_wait_for_the_engine_and_settlements_wait_for_notes() -> None:
    engine = FaultyEngine()

    async def talk(job: ActiveJob[int]) -> None:
        engine.down = True
        job.log.info("logged while the engine was away")

    service = service_of(talk)
    job_id = await create(engine, service.find("talk"), 1)
    async with worker(engine, service) as supervisor:
        await eventually(lambda: engine.down)
        engine.down = False
        await eventually(lambda: supervisor.settled == 1)
    assert [line.message for line in await engine.logs(job_id)] == [
        "logged while the engine was away"
    ]


@pytest.mark.parametrize("fault", [ReadOnlyDatabase, OutcomeUnknown, EngineError])
async def test_a_fault_of_the_engine_is_waited_out_and_fails_no_job(
    fault: type[EngineError],
) -> None:
    async def echo(number: int) -> int:
        return number

    service = service_of(echo)
    engine = FaultyEngine()
    engine.commit_faults = [fault("not now"), fault("not now either")]
    job_id = await create(engine, service.find("echo"), 7)
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == 1)
    assert (await record(engine, job_id)).head.state is State.COMPLETED
    (outcome,) = await engine.outcomes(job_id)
    assert outcome.result == "7"


async def test_a_fault_of_the_engine_drops_no_notes() -> None:
    async def talk(job: ActiveJob[int]) -> None:
        job.log.info("logged while something was wrong")

    service = service_of(talk)
    engine = FaultyEngine()
    engine.note_faults = [ReadOnlyDatabase("not now"), EngineError("not now either")]
    job_id = await create(engine, service.find("talk"), 1)
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == 1)
    (line,) = await engine.logs(job_id)
    assert line.message == "logged while something was wrong"


async def test_a_key_goes_on_when_the_handler_of_a_cancelled_job_returns_by_itself() -> None:
    go_on = asyncio.Event()
    begun: list[str] = []

    async def work(name: str) -> None:
        begun.append(name)
        if name == "first":
            await go_on.wait()

    service = service_of(work, per_key=PerKey.in_turn("only"))
    engine = FaultyEngine()
    async with worker(engine, service, FOR_HOURS):
        first = await create(engine, service.find("work"), "first")
        await eventually(lambda: begun == ["first"])
        await create(engine, service.find("work"), "second")
        await control.apply(engine, first, Cancel(force=True))
        go_on.set()
        await eventually(lambda: begun == ["first", "second"])


async def test_a_key_goes_on_when_a_handler_stops_before_its_timeout_is_stored() -> None:
    go_on = threading.Event()
    begun: list[str] = []

    def work(name: str) -> None:
        begun.append(name)
        if name == "first":
            go_on.wait(20)

    options = {"per_key": PerKey.in_turn("only"), "timeout": "10ms", "retry": Retry.never()}
    service = service_of(work, **options)  # type: ignore[arg-type]
    engine = FaultyEngine()
    engine.gate = asyncio.Event()
    async with worker(engine, service, FOR_HOURS) as supervisor:
        await create(engine, service.find("work"), "first")
        await eventually(lambda: begun == ["first"])
        await create(engine, service.find("work"), "second")
        (attempt,) = supervisor._attempts.running.values()
        await eventually(lambda: attempt.closed)
        go_on.set()
        await eventually(lambda: engine.reported == [attempt.fence])
        engine.gate.set()
        await eventually(lambda: begun == ["first", "second"])
