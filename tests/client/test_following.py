"""Following jobs with a reference: status, cancel, waiting for the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from trellis import (
    Fail,
    Job,
    JobCancelled,
    JobDead,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobReplaced,
    PerKey,
    Retry,
    Service,
    State,
    WaitTimeout,
)
from trellis.core.job import JobId
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import Topic
from trellis.errors import CommandRejected, EngineClosed


def greeting(service: Service) -> Job[str, str]:
    return service.declare("greet", payload=str, result=str)


async def test_a_result_comes_back_typed(service: Service) -> None:
    @service.job
    async def add(numbers: tuple[int, int]) -> tuple[str, int]:
        return "sum", sum(numbers)

    async with service.worker():
        assert await (await add.create((2, 3))).wait("10s") == ("sum", 5)


async def test_many_waiters_are_served(service: Service) -> None:
    @service.job
    async def double(number: int) -> int:
        return number * 2

    async with service.worker():
        refs = await double.create_many(range(300))
        results = await asyncio.gather(*(ref.wait("20s") for ref in refs))
    assert results == [number * 2 for number in range(300)]


async def test_a_reference_made_from_an_id_waits_just_as_well(service: Service) -> None:
    @service.job
    async def seven() -> int:
        return 7

    async with service.worker():
        ref = await seven.create()
        assert await seven.ref(ref.id).wait("10s") == 7


async def test_waiting_too_long_names_the_missing_worker(service: Service) -> None:
    ref = await greeting(service).create("ada")
    with pytest.raises(WaitTimeout, match=r"still pending after 10ms\. No worker for shop/greet"):
        await ref.wait("10ms")


async def test_waiting_for_an_unknown_job_says_so(service: Service) -> None:
    with pytest.raises(JobNotFound, match="There is no job 01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        await greeting(service).ref("01ARZ3NDEKTSV4RRFFQ69G5FAV").wait("10s")


async def test_an_unknown_job_has_no_status(service: Service) -> None:
    with pytest.raises(JobNotFound):
        await greeting(service).ref("01ARZ3NDEKTSV4RRFFQ69G5FAV").status()


async def test_a_cancelled_job_raises_for_its_waiter(service: Service) -> None:
    ref = await greeting(service).create("ada")
    waiter = asyncio.create_task(ref.wait("10s"))
    status = await ref.cancel("not needed")
    assert status.state is State.CANCELLED
    with pytest.raises(JobCancelled, match="was cancelled"):
        await waiter


async def test_cancelling_twice_is_fine(service: Service) -> None:
    ref = await greeting(service).create("ada")
    await ref.cancel()
    assert (await ref.cancel()).state is State.CANCELLED


async def test_a_finished_job_cannot_be_cancelled(service: Service) -> None:
    @service.job
    async def nothing() -> None:
        return None

    async with service.worker():
        ref = await nothing.create()
        await ref.wait("10s")
    with pytest.raises(CommandRejected, match="completed"):
        await ref.cancel()


async def test_a_failed_job_raises_its_reason(service: Service) -> None:
    @service.job
    async def refuse(name: str) -> None:
        raise Fail(f"{name} is not welcome")

    async with service.worker():
        with pytest.raises(JobFailed, match="ada is not welcome"):
            await (await refuse.create("ada")).wait("10s")


async def test_a_dead_job_raises_its_reason(service: Service) -> None:
    @service.job(retry=Retry.never())
    async def crash(name: str) -> None:
        raise RuntimeError(name)

    async with service.worker():
        with pytest.raises(JobDead, match="RuntimeError: ada"):
            await (await crash.create("ada")).wait("10s")


async def test_an_expired_job_raises(service: Service) -> None:
    job = greeting(service)

    @service.job
    async def other() -> None:
        return None

    async with service.worker(lease="300ms"):
        ref = await job.create("ada", deadline="1ms")
        with pytest.raises(JobExpired, match="its deadline passed"):
            await ref.wait("20s")


async def test_a_replaced_job_raises(service: Service) -> None:
    key = PerKey("one", queued=1, when_full="replace-oldest")
    job = service.declare("report", result=str, per_key=key)
    oldest = await job.create()
    await job.create()
    await job.create()
    with pytest.raises(JobReplaced, match="a newer job of its key took its place"):
        await oldest.wait("10s")


async def test_closing_the_service_sends_waiters_away(service: Service) -> None:
    ref = await greeting(service).create("ada")
    waiter = asyncio.create_task(ref.wait())
    follower = await service.connection.follower()
    while JobId(ref.id) not in follower._waiting:  # noqa: ASYNC110 - a signal that it waits
        await asyncio.sleep(0)
    await service.connection.close()
    with pytest.raises(EngineClosed):
        await waiter


class SlowToHangUp(MemoryEngine):
    """Takes its time to end a watch."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging_up = asyncio.Event()
        self.may_hang_up = asyncio.Event()

    async def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        try:
            async for topic in super().watch(topics):
                yield topic
        finally:
            self.hanging_up.set()
            await self.may_hang_up.wait()


async def test_whoever_comes_while_the_last_look_ends_is_served_too() -> None:
    service = Service("shop", "memory://")
    engine = service.connection._own._resident = SlowToHangUp()
    job = greeting(service)
    async with service:
        ref = await job.create("ada")
        await ref.cancel()
        with pytest.raises(JobCancelled):
            await ref.wait("10s")
        await asyncio.wait_for(engine.hanging_up.wait(), 10)
        with pytest.raises(JobCancelled):
            await ref.wait("10s")
        engine.may_hang_up.set()


async def test_waiting_with_nobody_to_work_is_mentioned_after_a_while(
    service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.insight.following._PATIENCE", 0.01)
    ref = await greeting(service).create("ada")
    with pytest.raises(WaitTimeout):
        await ref.wait("500ms")
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("No worker for shop/greet is running")
    lives_here = service.url == "memory://"
    advice = (
        "async with service.worker(): ..." if lives_here else "trellis worker your_module:service"
    )
    assert message.endswith(advice)
