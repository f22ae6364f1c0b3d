"""What `why` says about real workers, compared with what then happens.

The suite runs on each engine (`test_causes.py` here and in `tests/engines/postgres`). Each test
waits until `why` gives its answer, sees that the job does not start meanwhile, ends the cause and
waits for the job.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.worker.faulty import eventually
from trellis import ActiveJob, JobRef, Limit, PerKey, Retry, Service, State
from trellis.config import WorkerSettings
from trellis.control import apply
from trellis.core.commands import Crash
from trellis.core.job import JobId
from trellis.engines.demand import Demand
from trellis.engines.values import QueueSettings, WorkerInfo
from trellis.insight.why import explain
from trellis.service import work
from trellis.testing.builders import fence_of
from trellis.testing.conformance.helpers import the
from trellis.worker.supervisor import Supervisor

SETTINGS = WorkerSettings().with_options(concurrency=2, grace="10s")


class Shop:
    """A service with handlers that end when the test lets them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.go_on = threading.Event()
        self.begun: list[str] = []

        @service.job
        def wait(job: ActiveJob[str]) -> str:
            self.begun.append(job.id)
            self.go_on.wait(30)
            return job.id

        @service.job(concurrency=1)
        def single(job: ActiveJob[str]) -> str:
            return wait.job_type.handler.function(job)  # type: ignore[union-attr,no-any-return]

        @service.job(limit=Limit(active=1))
        def limited(job: ActiveJob[str]) -> str:
            return wait.job_type.handler.function(job)  # type: ignore[union-attr,no-any-return]

        @service.job(per_key=PerKey.in_turn("one"))
        def in_turn(job: ActiveJob[str]) -> str:
            return wait.job_type.handler.function(job)  # type: ignore[union-attr,no-any-return]

        @service.job
        def lock(job: ActiveJob[str]) -> str:
            with job.lock("ledger"):
                return wait.job_type.handler.function(job)  # type: ignore[union-attr,no-any-return]

        @service.job
        def quick(job: ActiveJob[str]) -> str:
            self.begun.append(job.id)
            return job.id

        @service.job(retry=Retry.fixed("300ms", attempts=2))
        def once_more(job: ActiveJob[str]) -> str:
            self.begun.append(job.id)
            if job.attempt == 1:
                raise ValueError("once more")
            return job.id

        self.wait, self.single, self.limited, self.in_turn = wait, single, limited, in_turn
        self.lock, self.quick, self.once_more = lock, quick, once_more

    async def codes(self, ref: JobRef[str]) -> list[str]:
        engine = await self.service.connection.engine()
        await engine.catch_up()
        found = await explain(engine, await the(engine, JobId(ref.id)))
        return [each.code for each in found.causes]

    async def says(self, ref: JobRef[str], *wanted: str) -> None:
        """Wait until `why` answers with these causes."""

        async def look() -> bool:
            return await self.codes(ref) == list(wanted)

        await eventually(look)

    async def has_begun(self, *refs: JobRef[str]) -> None:
        await eventually(lambda: all(ref.id in self.begun for ref in refs))

    async def is_held_back(self, ref: JobRef[str], *wanted: str) -> None:
        """Wait for these causes; see that the job has not begun, then let it run to its end."""
        await self.says(ref, *wanted)
        assert ref.id not in self.begun
        self.go_on.set()
        assert await ref.wait("20s") == ref.id

    @asynccontextmanager
    async def worker(
        self, settings: WorkerSettings = SETTINGS, queues: Sequence[str] = ()
    ) -> AsyncIterator[Supervisor]:
        try:
            async with work([self.service], settings.with_options(queues=queues)) as worker:
                try:
                    yield worker
                finally:
                    self.go_on.set()
        finally:
            self.go_on.set()


class RealCausesSuite:
    """The main causes with real workers."""

    async def test_no_worker(self, service: Service) -> None:
        shop = Shop(service)
        ref = await shop.quick.create("x")
        await shop.says(ref, "no_worker")
        async with shop.worker():
            assert await ref.wait("20s") == ref.id

    async def test_a_worker_only_for_other_queues(self, service: Service) -> None:
        shop = Shop(service)
        async with shop.worker(queues=["night"]):
            ref = await shop.quick.create("x")
            await shop.says(ref, "other_queues")
            other = await shop.quick.create("x", queue="night")
            assert await other.wait("20s") == other.id
            assert ref.id not in shop.begun
            async with shop.worker():
                assert await ref.wait("20s") == ref.id

    async def test_a_paused_queue(self, service: Service) -> None:
        shop = Shop(service)
        engine = await service.connection.engine()
        await engine.set_queue(QueueSettings("shop", "quick", paused=True))
        async with shop.worker():
            ref = await shop.quick.create("x")
            await shop.says(ref, "queue_paused")
            assert ref.id not in shop.begun
            await engine.set_queue(QueueSettings("shop", "quick"))
            assert await ref.wait("20s") == ref.id

    async def test_busy_slots_and_the_order_behind_them(self, service: Service) -> None:
        shop = Shop(service)
        async with shop.worker():
            await shop.has_begun(await shop.wait.create("x"), await shop.wait.create("x"))
            first, second = await shop.quick.create("x"), await shop.quick.create("x")
            await shop.says(first, "slots_busy")
            await shop.is_held_back(second, "slots_busy", "others_first")
            assert await first.wait("20s") == first.id
            assert shop.begun.index(first.id) < shop.begun.index(second.id)

    async def test_the_limit_of_a_type_in_a_worker(self, service: Service) -> None:
        shop = Shop(service)
        async with shop.worker():
            await shop.has_begun(await shop.single.create("x"))
            ref = await shop.single.create("x")
            await shop.says(ref, "type_full")
            quick = await shop.quick.create("x")
            assert await quick.wait("20s") == quick.id
            await shop.is_held_back(ref, "type_full")

    async def test_a_limit_over_the_fleet(self, service: Service) -> None:
        shop = Shop(service)
        async with shop.worker():
            await shop.has_begun(await shop.limited.create("x"))
            ref = await shop.limited.create("x")
            await shop.says(ref, "limit_reached")
            quick = await shop.quick.create("x")
            assert await quick.wait("20s") == quick.id
            await shop.is_held_back(ref, "limit_reached")

    async def test_a_held_key(self, service: Service) -> None:
        shop = Shop(service)
        async with shop.worker():
            holder = await shop.in_turn.create("x")
            await shop.has_begun(holder)
            await shop.says(holder, "running")
            await shop.is_held_back(await shop.in_turn.create("x"), "key_held")

    async def test_a_lock(self, service: Service) -> None:
        shop = Shop(service)
        async with shop.worker():
            await shop.has_begun(await shop.lock.create("x"))
            await shop.is_held_back(await shop.lock.create("x"), "lock_wait")

    async def test_a_later_time_and_the_delay_before_a_retry(self, service: Service) -> None:
        shop = Shop(service)
        async with shop.worker():
            later = await shop.quick.create("x", delay="1s")
            await shop.says(later, "later")
            assert later.id not in shop.begun
            again = await shop.once_more.create("x")
            await shop.says(again, "backoff")
            assert shop.begun.count(again.id) == 1
            for ref in (again, later):
                assert await ref.wait("20s") == ref.id

    async def test_a_worker_that_has_begun_its_last_job(self, service: Service) -> None:
        shop = Shop(service)
        settings = SETTINGS.with_options(max_jobs=1)
        async with shop.worker(settings):
            await shop.has_begun(await shop.wait.create("x"))
            ref = await shop.quick.create("x")
            await shop.says(ref, "workers_draining")
            assert ref.id not in shop.begun
            async with shop.worker():
                assert await ref.wait("20s") == ref.id

    async def test_a_worker_that_stops(self, service: Service) -> None:
        shop = Shop(service)
        async with shop.worker() as worker:
            await shop.has_begun(await shop.wait.create("x"))
            stopping = asyncio.create_task(worker.stop())
            ref = await shop.quick.create("x")
            await shop.says(ref, "workers_draining")
            shop.go_on.set()
            await stopping
            await shop.says(ref, "no_worker")
            assert ref.id not in shop.begun

    async def test_a_suspect_that_runs_alone(self, service: Service) -> None:
        shop = Shop(service)
        engine = await service.connection.engine()
        suspect = await shop.wait.create("x")
        info = WorkerInfo("crashed", "berlin", 1)
        session = (await engine.open_session(info, SETTINGS.lease)).id
        (taken,) = (await engine.claim(session, [Demand("shop", ("wait",), 1)], 1)).jobs
        await apply(engine, JobId(suspect.id), Crash(fence_of(taken), "boom", alone=False))
        async with shop.worker():
            await shop.has_begun(suspect)
            await shop.is_held_back(await shop.quick.create("x"), "runs_alone")

    async def test_a_job_that_has_ended_while_its_thread_runs_on(self, service: Service) -> None:
        shop = Shop(service)
        engine = await service.connection.engine()
        async with shop.worker():
            ref = await shop.wait.create("x", timeout="50ms", attempts=1)
            await shop.has_begun(ref)

            async def is_named() -> bool:
                found = await explain(engine, await the(engine, JobId(ref.id)))
                return "still runs in a lost thread" in found.text

            await eventually(is_named)
            assert (await ref.status()).state is State.DEAD
            quick = await shop.quick.create("x")
            assert await quick.wait("20s") == quick.id
