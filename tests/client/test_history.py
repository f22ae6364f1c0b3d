"""Following a job: its events and its log, each once, in order, until it ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from trellis import ActiveJob, Job, JobNotFound, JobRef, Retry, RetryIn, Service, State
from trellis.core.events import EventKind
from trellis.core.job import JobId


def greeting(service: Service) -> Job[str, str]:
    return service.declare("greet", payload=str, result=str)


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
