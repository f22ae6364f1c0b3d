"""What puts off the activity timeout besides what a handler reports."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.worker.faulty import eventually
from trellis import ActiveJob, JobRef, Service
from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.worker.log import LINES_LIMIT

REPORTED = ("1", "10", "100", "1,000")


async def last_sign(service: Service, ref: JobRef[Any]) -> Instant:
    engine = await service.connection.engine()
    found = await engine.activity(JobId(ref.id))
    return 0 if found is None or found.seen_at is None else found.seen_at


async def until_newer(service: Service, ref: JobRef[Any], than: Instant) -> Instant:
    """Wait for a sign of life that is newer."""
    newest = than

    async def is_newer() -> bool:
        nonlocal newest
        newest = await last_sign(service, ref)
        return newest > than

    await eventually(is_newer)
    return newest


async def test_waiting_for_a_lock_is_a_sign_of_life(service: Service) -> None:
    asked, leave = asyncio.Event(), asyncio.Event()

    @service.job
    async def stay(job: ActiveJob[None]) -> None:
        async with job.lock("ledger"):
            asked.set()
            await leave.wait()

    @service.job(activity_timeout="1m")
    def follow(job: ActiveJob[None]) -> None:
        with job.lock("ledger"):
            pass

    async with service.worker():
        await stay.create()
        await asked.wait()
        ref = await follow.create()
        sign = await until_newer(service, ref, 0)
        for _ in range(2):  # the first may be the note that the handler has begun
            sign = await until_newer(service, ref, sign)
        leave.set()
        await ref.wait("20s")


async def test_a_log_line_that_is_dropped_is_a_sign_of_life(service: Service) -> None:
    is_full, leave = threading.Event(), threading.Event()

    @service.job(activity_timeout="1m")
    def talk(job: ActiveJob[None]) -> None:
        for _ in range(LINES_LIMIT + 1_000):  # the next line about dropped ones is far away
            job.log.info("line")
        is_full.set()
        while not leave.wait(0.01):
            job.log.info("dropped")

    async with service.worker():
        ref = await talk.create()
        await asyncio.to_thread(is_full.wait)
        engine = await service.connection.engine()

        async def all_are_stored() -> bool:
            return len(await engine.logs(JobId(ref.id), after=LINES_LIMIT)) == len(REPORTED)

        await eventually(all_are_stored)
        sign = await last_sign(service, ref)
        for _ in range(2):
            sign = await until_newer(service, ref, sign)
        lines = await engine.logs(JobId(ref.id), after=LINES_LIMIT)
        leave.set()
        await ref.wait("20s")
    assert [line.message for line in lines] == [
        f"An attempt keeps 5,000 lines; {count} more were dropped." for count in REPORTED
    ]
