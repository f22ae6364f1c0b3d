"""The order in which the jobs of one key run, when one of them must be tried again."""

from __future__ import annotations

import asyncio

import pytest

from trellis import ActiveJob, PerKey, Retry, RetryIn, Service, Snooze

SOON = Retry.fixed("1ms", attempts=3)


@pytest.mark.parametrize("again", [ValueError("not yet"), RetryIn("1ms"), Snooze("1ms")])
async def test_nothing_passes_a_job_that_waits_for_its_retry_in_strict_turn(
    service: Service, again: Exception
) -> None:
    ran: list[tuple[int, int]] = []

    @service.job(retry=SOON, per_key=PerKey.in_turn("one", strict=True))
    async def work(job: ActiveJob[int]) -> None:
        ran.append((job.payload, len(ran)))
        if ran == [(1, 0)]:
            raise again

    refs = await work.create_many([1, 2, 3])
    async with service.worker():
        for ref in refs:
            await ref.wait("10s")
    assert [number for number, _ in ran] == [1, 1, 2, 3]


async def test_a_job_that_waits_for_its_retry_lets_the_next_of_its_key_pass(
    service: Service,
) -> None:
    ran: list[int] = []
    others_ran = asyncio.Event()

    @service.job(retry=Retry.fixed("1h"), per_key=PerKey.in_turn("one"))
    async def work(number: int) -> None:
        ran.append(number)
        if number == 1:
            raise ValueError("not yet")
        if number == 3:
            others_ran.set()

    await work.create_many([1, 2, 3])
    async with service.worker():
        await asyncio.wait_for(others_ran.wait(), 10)
    assert ran == [1, 2, 3]
