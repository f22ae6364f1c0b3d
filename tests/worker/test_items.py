"""Items of a job: their statuses decide how it ends, and later attempts leave out what is done."""

from __future__ import annotations

import asyncio

import pytest

from trellis import ActiveJob, CommandRejected, ConfigurationError, JobFailed, Retry, Service, State
from trellis.insight.views import ItemView
from trellis.testing import sandbox

AT_ONCE = Retry.fixed(0, attempts=2)


def brief(items: list[ItemView]) -> list[tuple[str, str, str | None, int]]:
    return [(item.name, item.status, item.detail, item.claim) for item in items]


async def test_items_are_read_by_name_with_status_and_error_after_later_phases(
    service: Service,
) -> None:
    @service.job
    async def publish(job: ActiveJob[int]) -> str:
        job.phase("render")
        job.items.complete("page-1")
        job.items.fail("page-2", ValueError("404 not found"))
        job.phase("upload")
        job.items.skip("page-1", "unchanged")
        return "published"

    async with service.worker():
        ref = await publish.create(1)
        assert await ref.wait("10s") == "published"
    assert (await ref.status()).state is State.COMPLETED_WITH_ERRORS
    assert await ref.items() == [
        ItemView("page-1", "completed", None, "render", 1),
        ItemView("page-2", "failed", "ValueError: 404 not found", "render", 1),
        ItemView("page-1", "skipped", "unchanged", "upload", 1),
    ]
    assert await asyncio.to_thread(ref.items_sync) == await ref.items()


async def test_a_handler_that_returns_after_all_its_items_failed_is_retried(
    service: Service,
) -> None:
    @service.job(retry=AT_ONCE, dead_letters=False)
    def publish(job: ActiveJob[int]) -> None:
        for name in ("a", "b", "c", "d"):
            job.items.fail(name, f"no {name} in attempt {job.attempt}")

    async with service.worker():
        ref = await publish.create(1)
        with pytest.raises(JobFailed, match=r"All 4 items failed: a, b, c and 1 more\."):
            await ref.wait("10s")
    status = await ref.status()
    assert (status.state, status.attempt) == (State.FAILED, 2)
    assert status.error is not None
    assert status.error.code == "items_failed"
    assert [item.detail for item in await ref.items()] == [f"no {x} in attempt 2" for x in "abcd"]
    assert len(await ref.items(all_attempts=True)) == 8


async def test_an_item_that_was_declared_and_not_reached_has_not_failed(service: Service) -> None:
    @service.job
    def publish(job: ActiveJob[int]) -> None:
        first, *_ = job.items.pending(["a", "b"])
        job.items.fail(first)

    async with service.worker():
        ref = await publish.create(1)
        await ref.wait("10s")
    assert (await ref.status()).state is State.COMPLETED_WITH_ERRORS
    assert brief(await ref.items()) == [("a", "failed", None, 1), ("b", "pending", None, 1)]


async def test_a_retry_leaves_out_what_an_earlier_attempt_finished(service: Service) -> None:
    done: list[tuple[int, str]] = []

    @service.job(retry=AT_ONCE)
    async def publish(job: ActiveJob[int]) -> None:
        for name in job.items.pending(["c", "a", "b", "a"]):
            if name == "b" and job.attempt == 1:
                raise ConnectionError("the printer is away")
            done.append((job.attempt, name))
            job.items.complete(name, f"by {job.attempt}")

    async with service.worker():
        ref = await publish.create(1)
        await ref.wait("10s")
    assert done == [(1, "c"), (1, "a"), (2, "b")]
    assert brief(await ref.items()) == [
        ("a", "completed", "by 1", 2),
        ("b", "completed", "by 2", 2),
        ("c", "completed", "by 1", 2),
    ]


async def test_failed_items_of_a_partly_completed_job_are_run_again_alone(
    service: Service,
) -> None:
    broken, done = {"b"}, []

    @service.job
    def publish(job: ActiveJob[int]) -> int:
        job.phase("render")
        for name in job.items.pending(["a", "b", "c"]):
            done.append(name)
            if name in broken:
                job.items.fail(name, "boom")
            else:
                job.items.complete(name)
        return len(done)

    async with service.worker():
        ref = await publish.create(1)
        await ref.wait("10s")
        with pytest.raises(CommandRejected, match="trellis jobs retry --failed-items"):
            await ref.retry()
        for _ in range(2):  # the second time, the items of the first retry count as well
            assert (await ref.retry(failed_items=True)).state is State.PENDING
            await ref.wait("10s")
            broken.clear()
    assert done == ["a", "b", "c", "b", "b"]
    assert (await ref.status()).state is State.COMPLETED
    assert [item.status for item in await ref.items()] == ["completed"] * 3
    with pytest.raises(CommandRejected, match="A retry of failed items is not possible"):
        await ref.retry(failed_items=True)


async def test_a_plain_retry_of_a_failed_job_does_everything_again(service: Service) -> None:
    done: list[str] = []

    @service.job(retry=Retry.never(), dead_letters=False)
    def publish(job: ActiveJob[int]) -> None:
        for name in job.items.pending(["a", "b"]):
            done.append(name)
            job.items.complete(name)
        if len(done) == 2:
            raise ValueError("late")

    async with service.worker():
        ref = await publish.create(1)
        with pytest.raises(JobFailed):
            await ref.wait("10s")
        await ref.retry()
        await ref.wait("10s")
    assert done == ["a", "b", "a", "b"]


async def test_a_job_without_items_cannot_be_run_again_for_some_of_them(service: Service) -> None:
    @service.job(retry=Retry.never(), dead_letters=False)
    def publish() -> None:
        raise ValueError("early")

    async with service.worker():
        ref = await publish.create()
        with pytest.raises(JobFailed):
            await ref.wait("10s")
    with pytest.raises(CommandRejected, match="has reported no items"):
        await ref.retry(failed_items=True)


async def test_pending_without_names_means_the_items_that_were_reported(service: Service) -> None:
    seen: list[list[str]] = []

    @service.job
    def publish(job: ActiveJob[int]) -> None:
        seen.append(job.items.pending())
        if job.items.pending() == []:
            job.items.complete("a")
            job.items.fail("b")
            job.items.start("c")
        seen.append(job.items.pending())
        with pytest.raises(ConfigurationError, match="takes a list of names"):
            job.items.pending("abc")
        for name in job.items.pending():
            if job.max_attempts and len(seen) > 2:
                job.items.complete(name)

    async with service.worker():
        ref = await publish.create(1)
        await ref.wait("10s")
        await ref.retry(failed_items=True)
        await ref.wait("10s")
    assert seen == [[], ["b", "c"], ["b", "c"], ["b", "c"]]
    assert (await ref.status()).state is State.COMPLETED


async def test_a_sandbox_runs_failed_items_again() -> None:
    service = Service("letters", "memory://")

    @service.job
    async def send(job: ActiveJob[int]) -> list[str]:
        left = job.items.pending(["a", "b"])
        for name in left:
            if name == "b" and len(left) > 1:
                job.items.fail(name)
            else:
                job.items.complete(name)
        return left

    with sandbox() as box:
        ref = await send.create(1)
        await box.run_all()
        await ref.retry(failed_items=True)
        await box.run_all()
        assert await ref.wait() == ["b"]
