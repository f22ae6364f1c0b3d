"""Named locks over all workers: taken and freed by handlers, lost with the attempt."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.worker.faulty import eventually
from trellis import ActiveJob, JobCancelled, JobRef, LockBusy, Retry, Service, State
from trellis.core.job import JobId
from trellis.engines.values import LockHolder
from trellis.errors import CalledFromLoop, ConfigurationError


async def locks(service: Service) -> dict[str, LockHolder]:
    engine = await service.connection.engine()
    return {lock.name: lock for lock in await engine.locks() if lock.job_id is not None}


class Room:
    """Counts tasks and threads that are inside at the same time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.inside = self.most = self.visits = 0

    def enter(self) -> None:
        with self._guard:
            self.inside += 1
            self.visits += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self._guard:
            self.inside -= 1


async def test_coroutines_and_threads_of_all_workers_exclude_each_other(tmp_path: Path) -> None:
    room = Room()
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    services = [Service("shop", url), Service("shop", url)]
    for service in services:

        @service.job
        async def walk(job: ActiveJob[int]) -> None:
            async with job.lock("room"):
                room.enter()
                await asyncio.sleep(0)
                room.leave()

        @service.job
        def run(job: ActiveJob[int]) -> None:
            with job.lock("room"):
                room.enter()
                threading.Event().wait(0.001)
                room.leave()

    async with AsyncExitStack() as stack:
        for service in services:
            await stack.enter_async_context(service.worker(concurrency=4, poll="20ms"))
        refs = [
            *(await services[0].find("walk").create_many(range(8))),
            *(await services[0].find("run").create_many(range(8))),
        ]
        await asyncio.gather(*(ref.wait("60s") for ref in refs))
        assert (room.most, room.visits) == (1, 16)
        assert await locks(services[0]) == {}


async def test_the_error_about_a_taken_lock_names_its_holder(service: Service) -> None:
    taken, done = asyncio.Event(), asyncio.Event()

    @service.job
    async def keep(job: ActiveJob[None]) -> None:
        async with job.lock("ledger"):
            taken.set()
            await done.wait()

    @service.job
    async def hurry(job: ActiveJob[None]) -> str:
        try:
            async with job.lock("ledger", wait="10ms"):
                return "mine"
        except LockBusy as busy:
            return f"{busy.name} {busy.job_id} {busy}"

    @service.job
    def hurry_in_a_thread(job: ActiveJob[None]) -> str:
        try:
            with job.lock("ledger", wait=0):
                return "mine"
        except LockBusy as busy:
            return f"{busy.name} {busy.job_id} {busy}"

    async with service.worker():
        keeper = await keep.create()
        await taken.wait()
        for job in (hurry, hurry_in_a_thread):
            answer = await (await job.create()).wait("20s")
            assert answer.startswith(
                f"ledger {keeper.id} Lock 'ledger' is not free: job {keeper.id}"
            )
        assert (await locks(service))["ledger"].job_id == keeper.id
        done.set()
        await keeper.wait("20s")
        assert await (await hurry.create()).wait("20s") == "mine"


async def test_a_cancel_ends_the_waiting(service: Service) -> None:
    waiting, cancelled = threading.Event(), asyncio.Event()

    @service.job
    async def keep(job: ActiveJob[None]) -> None:
        async with job.lock("ledger"):
            await cancelled.wait()

    @service.job
    def queue_up(job: ActiveJob[None]) -> None:
        waiting.set()
        with job.lock("ledger"):
            pass

    async with service.worker(lease="1s"):
        await keep.create()
        await eventually(lambda: has_lock(service))
        waiter = await queue_up.create()
        await asyncio.to_thread(waiting.wait)
        await waiter.cancel()
        with pytest.raises(JobCancelled):
            await waiter.wait("20s")
        cancelled.set()


async def has_lock(service: Service) -> bool:
    return bool(await locks(service))


async def test_a_worker_that_stops_hands_back_who_waits(service: Service) -> None:
    waiting, gone = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    @service.job
    async def keep(job: ActiveJob[None]) -> None:
        async with job.lock("ledger"):
            await gone.wait()

    @service.job(retry=Retry.never())
    async def queue_up(job: ActiveJob[None]) -> None:
        attempts.append(job.attempt)
        waiting.set()
        try:
            async with job.lock("ledger"):
                pass
        finally:
            gone.set()

    waiter: JobRef[None]
    async with service.worker():
        await keep.create()
        await eventually(lambda: has_lock(service))
        waiter = await queue_up.create()
        await waiting.wait()
    status = await waiter.status()
    assert (status.state, status.attempt) == (State.RETRY, 0)
    async with service.worker():
        await waiter.wait("20s")
    assert attempts == [1, 1]


async def test_the_lock_of_an_ended_attempt_stays_held_until_its_handler_has_stopped(
    service: Service,
) -> None:
    inside, leave = threading.Event(), threading.Event()
    room = Room()

    @service.job
    def stay(job: ActiveJob[None]) -> None:
        lock = job.lock("ledger")
        lock.__enter__()  # and never back: it ends with the handler
        room.enter()
        inside.set()
        leave.wait()
        room.leave()

    @service.job
    async def follow(job: ActiveJob[None]) -> int:
        async with job.lock("ledger"):
            return room.inside

    async with service.worker(lease="30s"):
        stays = await stay.create()
        await asyncio.to_thread(inside.wait)
        await stays.cancel(force=True)
        with pytest.raises(JobCancelled):
            await stays.wait("20s")
        assert (await locks(service))["ledger"].job_id == stays.id
        follows = await follow.create()
        await until_asked(service, follows)
        assert (await locks(service))["ledger"].job_id == stays.id
        leave.set()
        assert await follows.wait("20s") == 0


async def until_asked(service: Service, waiter: JobRef[int]) -> None:
    """Wait until the handler runs, which requests its lock at once and then repeatedly."""
    engine = await service.connection.engine()

    async def has_begun() -> bool:
        noted = await engine.activity(JobId(waiter.id))
        return noted is not None and noted.began_at is not None

    await eventually(has_begun)


async def test_a_handler_that_leaves_with_an_error_leaves_the_lock(service: Service) -> None:
    @service.job(retry=Retry.never(), dead_letters=False)
    async def stumble(job: ActiveJob[None]) -> None:
        async with job.lock("ledger"):
            raise RuntimeError("oh")

    async with service.worker():
        ref = await stumble.create()
        async for _ in ref.events(follow=True):
            pass
        assert await locks(service) == {}


async def test_waiting_given_up_by_a_timeout_leaves_no_lock(service: Service) -> None:
    @service.job
    async def impatient(job: ActiveJob[None]) -> str:
        async with job.lock("a"):
            try:
                async with asyncio.timeout(0):
                    async with job.lock("b"):
                        return "mine"
            except TimeoutError:
                pass
            async with job.lock("b", wait="10s"):
                return ",".join(await locks(service))

    async with service.worker():
        assert await (await impatient.create()).wait("20s") in ("a,b", "mine")


async def test_tasks_of_one_handler_exclude_each_other_too(service: Service) -> None:
    room = Room()

    @service.job
    async def crowd(job: ActiveJob[None]) -> None:
        async def visit() -> None:
            async with job.lock("room"):
                room.enter()
                await asyncio.sleep(0.001)
                room.leave()

        await asyncio.gather(*(visit() for _ in range(3)))

    async with service.worker():
        await (await crowd.create()).wait("20s")
    assert (room.most, room.visits) == (1, 3)


async def test_taking_a_lock_twice_is_refused_instead_of_waiting_forever(
    service: Service,
) -> None:
    @service.job
    async def twice(job: ActiveJob[None]) -> str:
        async with job.lock("ledger"):
            try:
                async with job.lock("ledger"):
                    return "mine"
            except ConfigurationError as error:
                assert "ledger" in await locks(service)
                return str(error)

    async with service.worker():
        text = await (await twice.create()).wait("20s")
    assert text.startswith("This code already holds lock 'ledger'")


async def test_with_is_refused_where_it_would_block_the_loop(service: Service) -> None:
    @service.job
    async def block(job: ActiveJob[None]) -> str:
        try:
            with job.lock("ledger"):
                return "mine"
        except CalledFromLoop as error:
            return str(error)

    async with service.worker():
        text = await (await block.create()).wait("20s")
    assert text.endswith("Write: async with job.lock('ledger')")


async def test_a_name_or_a_wait_that_cannot_be_is_refused(service: Service) -> None:
    mixed: Any = ("edition", ("project", 3))

    @service.job
    async def bad(job: ActiveJob[None]) -> None:
        with pytest.raises(ConfigurationError, match="name of a lock"):
            job.lock("")
        with pytest.raises(ConfigurationError, match="are reserved for Trellis"):
            job.lock("trellis/leader")
        with pytest.raises(ConfigurationError, match="is not a duration"):
            job.lock("x", wait="long")
        with pytest.raises(ConfigurationError, match="begins with a text"):
            job.lock((7, "edition"))
        with pytest.raises(ConfigurationError, match="True is not a part of the name"):
            job.lock("edition", True)
        with pytest.raises(ConfigurationError, match="mix both"):
            job.lock(*mixed)

    async with service.worker():
        await (await bad.create()).wait("20s")


async def test_a_name_may_have_parts_that_never_collide(service: Service) -> None:
    @service.job
    async def hold(job: ActiveJob[None]) -> list[str]:
        async with job.lock("edition", 7), job.lock("a", "b/c"), job.lock("a/b", "c"):
            return sorted(await locks(service))

    async with service.worker():
        names = await (await hold.create()).wait("20s")
    assert names == ["a%2Fb/c", "a/b%2Fc", "edition/7"]


async def test_several_locks_are_taken_in_the_order_of_their_names(service: Service) -> None:
    first, second = ("a", 1), ("b", 2)

    @service.job
    async def hold(job: ActiveJob[int]) -> str:
        names = (first, second) if job.payload % 2 else (second, first)
        async with job.lock(*names, wait="20s") as lock:
            await asyncio.sleep(0)
            assert sorted(await locks(service)) == ["a/1", "b/2"]
        return lock.name

    async with service.worker(concurrency=8):
        refs = await hold.create_many(range(16))
        assert {await ref.wait("20s") for ref in refs} == {"a/1, b/2"}
    assert await locks(service) == {}


async def test_of_several_locks_none_stays_taken_if_one_is_busy(service: Service) -> None:
    held, leave = asyncio.Event(), asyncio.Event()

    @service.job
    async def block(job: ActiveJob[None]) -> None:
        async with job.lock("b"):
            held.set()
            await leave.wait()

    async def only_one_is_left() -> bool:
        return list(await locks(service)) == ["b"]

    @service.job
    async def give_up(job: ActiveJob[None]) -> str:
        try:
            async with job.lock(("a",), ("b",), wait=0):
                return ""
        except LockBusy as busy:
            await eventually(only_one_is_left)
            return busy.name

    async with service.worker():
        blocking = await block.create()
        await held.wait()
        assert await (await give_up.create()).wait("20s") == "b"
        leave.set()
        await blocking.wait("20s")


async def test_a_handler_run_as_a_function_has_every_lock() -> None:
    shop = Service("shop", "memory://")

    @shop.job
    async def walk(job: ActiveJob[int]) -> int:
        async with job.lock("room"):
            return job.payload

    @shop.job
    def run(job: ActiveJob[int]) -> int:
        return job.payload

    assert await walk.run_inline(3) == 3
    assert await run.run_inline(4) == 4
