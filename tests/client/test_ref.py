"""References: wait for the end, follow events and logs, change the job, name a missing worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.testing.shop import confirm
from trellis import (
    ActiveJob,
    Fail,
    Job,
    JobCancelled,
    JobDead,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobRef,
    JobReplaced,
    PerKey,
    Retry,
    RetryIn,
    Service,
    State,
    WaitTimeout,
)
from trellis.client.ref import start_worker_hint
from trellis.core.events import EventKind
from trellis.core.job import JobId
from trellis.engines import make_engine
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import Topic
from trellis.errors import CommandRejected, ConfigurationError, EngineClosed


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


def test_an_id_that_is_no_text_is_refused_before_any_engine_is_asked(service: Service) -> None:
    greet = greeting(service)
    for wrong in (5, None, b"01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        with pytest.raises(ConfigurationError, match=r"is not a text\. Write it like job_id='01JC"):
            greet.ref(wrong)  # type: ignore[arg-type]


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


async def test_a_failed_job_raises_the_data_of_its_failure(service: Service) -> None:
    given = {"order": 7, "at": datetime(2030, 1, 1, tzinfo=UTC), "password": "hunter2"}

    @service.job
    async def refuse(kind: str) -> None:
        raise Fail("no", data={"given": given, "large": "x" * 99_999, "odd": {(): 1}}[kind])

    async def data_of(kind: str) -> Any:  # noqa: ANN401 - plain JSON data
        with pytest.raises(JobFailed) as failed:
            await (await refuse.create(kind)).wait("10s")
        return failed.value.data

    async with service.worker():
        assert await data_of("given") == {
            "order": 7,
            "at": "2030-01-01 00:00:00+00:00",
            "password": "**********",
        }
        assert "cannot be stored" in (await data_of("large"))["dropped"]
        assert "cannot be written as JSON" in (await data_of("odd"))["dropped"]


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
    with pytest.raises(JobReplaced, match="a newer job of its key replaced it"):
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


async def test_a_wait_that_begins_while_the_last_look_ends_is_served_too() -> None:
    service = Service("shop", "memory://")
    engine = service.connection._own._shared_engine = SlowToHangUp()
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


async def test_waiting_without_a_worker_is_logged_after_a_while(
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


async def kinds(ref: JobRef[str], *, follow: bool) -> list[str]:
    return [event.kind async for event in ref.events(follow=follow)]


async def test_the_events_so_far_are_given_and_no_more(service: Service) -> None:
    ref = await greeting(service).create("ada")
    (created,) = [event async for event in ref.events()]
    assert (created.kind, created.state) == (EventKind.CREATED, State.PENDING)
    assert abs((datetime.now(UTC) - created.at).total_seconds()) < 60
    assert created.attempt_id is None


async def test_events_are_followed_until_the_job_ends_each_once(service: Service) -> None:
    gate = asyncio.Event()

    @service.job(retry=Retry(attempts=3))
    async def stubborn(job: ActiveJob[str]) -> str:
        await gate.wait()
        if job.attempt < 3:
            raise RetryIn("1ms")
        return job.payload

    ref = await stubborn.create("ada")
    follower = asyncio.create_task(kinds(ref, follow=True))
    async with service.worker(poll="20ms"):
        gate.set()
        seen = await asyncio.wait_for(follower, 30)
    assert seen == ["created", "started", "retry", "started", "retry", "started", "completed"]
    assert await kinds(ref, follow=True) == seen


async def test_events_tell_the_attempt_and_the_reason(service: Service) -> None:
    ref = await greeting(service).create("ada")
    await ref.cancel("not needed")
    *_, last = [event async for event in ref.events()]
    assert last.kind == "cancelled"
    assert last.data["reason"] == "not needed"


async def test_a_log_is_followed_while_it_is_written_without_gap_or_repeat(
    service: Service,
) -> None:
    first_lines_seen = asyncio.Event()

    @service.job
    async def talk(job: ActiveJob[int]) -> None:
        for number in range(job.payload):
            job.log.info("line %d", number, half=1)
        await first_lines_seen.wait()
        for number in range(job.payload):
            job.log.warning("line %d", number, half=2)

    async with service.worker():
        ref = await talk.create(1200)
        seen = []
        async for line in ref.logs(follow=True):
            seen.append(line)
            first_lines_seen.set()
    assert [line.number for line in seen] == sorted({line.number for line in seen})
    expected = [("info", 1, n) for n in range(1200)] + [("warning", 2, n) for n in range(1200)]
    assert [
        (line.level, line.fields["half"], int(line.message.split()[1])) for line in seen
    ] == expected
    assert {line.claim for line in seen} == {1}


async def test_the_log_so_far_is_given_and_no_more(service: Service) -> None:
    ref = await greeting(service).create("ada")
    assert [line async for line in ref.logs()] == []


async def test_an_unknown_job_has_no_history(service: Service) -> None:
    ref = greeting(service).ref("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    for follow in (False, True):
        with pytest.raises(JobNotFound):
            await anext(ref.events(follow=follow))
        with pytest.raises(JobNotFound):
            await anext(ref.logs(follow=follow))


async def test_many_followers_share_one_watch_which_ends_with_the_last(service: Service) -> None:
    refs = await greeting(service).create_many(["ada"] * 20)
    followers = [asyncio.create_task(kinds(ref, follow=True)) for ref in refs]
    watch = (await service.connection.follower())._watch
    while len(watch._followers) < 20:  # noqa: ASYNC110 - a signal that they follow
        await asyncio.sleep(0)
    assert len([task for task in asyncio.all_tasks() if task.get_name() == "trellis-watch"]) == 1
    for ref in refs:
        await ref.cancel()
    assert await asyncio.gather(*followers) == [["created", "cancelled"]] * 20
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "trellis-watch"]


async def test_a_failed_job_is_retried_and_a_dead_one_replayed_or_dismissed(
    service: Service,
) -> None:
    tries = 0

    @service.job(retry=Retry.never(), dead_letters=False)
    async def fail_once() -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("once")
        return tries

    @service.job(retry=Retry.never())
    async def die() -> None:
        raise RuntimeError("always")

    async with service.worker():
        failed, dead, closed = await fail_once.create(), await die.create(), await die.create()
        for ref in (failed, dead, closed):
            assert [event async for event in ref.events(follow=True)][-1].state in (
                "failed",
                "dead",
            )
        assert (await failed.retry()).state in (State.PENDING, State.ACTIVE, State.COMPLETED)
        assert await failed.wait("20s") == 2
        assert (await closed.dismiss()).state is State.DISMISSED
    assert (await dead.replay()).state is State.PENDING


async def test_a_clone_is_another_job_with_the_same_payload(service: Service) -> None:
    ref = await greeting(service).create("ada", tags={"customer": "7"})
    twin = await ref.clone()
    assert twin != ref
    engine = await service.connection.engine()
    one, two = (await engine.load([JobId(ref.id), JobId(twin.id)])).records
    assert one is not None
    assert two is not None
    assert (two.definition.payload, two.definition.tags) == ('"ada"', (("customer", "7"),))
    assert two.definition.clone_of == ref.id


def test_the_command_names_the_module_and_variable_of_the_service() -> None:
    text = start_worker_hint(make_engine("sqlite:///jobs.db"), confirm.job_type)
    assert text.endswith("Start one: trellis worker tests.testing.shop:shop")


def test_where_the_module_is_unknown_the_command_has_words_to_replace() -> None:
    hidden = Service("hidden")

    @hidden.job
    async def work() -> None: ...

    declared = hidden.declare("elsewhere", result=int)
    for job in (work, declared):
        text = start_worker_hint(make_engine("sqlite:///jobs.db"), job.job_type)
        assert text.endswith("Start one: trellis worker your_module:service")


async def test_the_log_ends_what_a_handler_said_before_its_own_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Service("shop", "memory://")

    @shop.job(retry=Retry.never())
    async def bill(words: str) -> None:
        raise ValueError(words)

    async with shop, shop.worker():
        for words in ("the amount is negative", "Not that!"):
            with pytest.raises(JobDead):
                await (await bill.create(words)).wait()
    assert "ValueError: the amount is negative. The job is dead." in caplog.text
    assert "ValueError: Not that! The job is dead." in caplog.text
