"""A cluster of three servers with running workers: restarted node by node, and with a node lost."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel

from tests.engines.moving.estate import found, survey
from tests.harness.servers.nats import NatsCluster
from trellis import ActiveJob, Job, PerKey, Retry, Service
from trellis.admin.export import stream_exporter
from trellis.core.job import JobId
from trellis.core.states import State
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.sqlite import SqliteEngine
from trellis.errors import EngineError
from trellis.operations.transfer import Endpoint, move
from trellis.testing.builders import a_job

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PATIENCE = 120.0
#: Seconds until everything is done after a long outage; once, two minutes were too few.
RESUMES = 300.0


class Shop:
    """A service with workers, for which jobs are created all the time."""

    def __init__(self, url: str) -> None:
        self.ids: list[JobId] = []
        self.runs: list[str] = []
        self.service = Service("shop", url)
        self._stop = asyncio.Event()

        @self.service.job(name="invoice", queue="invoices")
        async def invoice(job: ActiveJob[int]) -> int:
            self.runs.append(job.id)
            return job.payload

        self._job = invoice

    async def create(self) -> None:
        """Create jobs until the end."""
        while not self._stop.is_set():
            try:
                ref = await self._job.create(len(self.ids))
            except EngineError:
                continue  # it may be stored; the worker runs it then
            self.ids.append(JobId(ref.id))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await self._stop.wait()

    def stop(self) -> None:
        """Create no more."""
        self._stop.set()


@pytest.fixture
async def engine(nats_three: NatsCluster) -> AsyncIterator[JetStreamEngine]:
    await asyncio.to_thread(nats_three.start)
    engine = JetStreamEngine(nats_three.url, prefix="t" + secrets.token_hex(4))
    await engine.migrate()
    await engine.open()
    assert (await engine.health()).facts["replicas"] == 3
    yield engine
    await asyncio.to_thread(nats_three.start)
    await engine.close()


@asynccontextmanager
async def busy(cluster: NatsCluster, engine: JetStreamEngine) -> AsyncIterator[Shop]:
    """Have jobs created and run meanwhile; see that each that was accepted was completed, once."""
    shop = Shop(f"{cluster.url}?prefix={engine._subjects.prefix}")
    async with shop.service, shop.service.worker(), asyncio.TaskGroup() as group:
        creating = group.create_task(shop.create())
        try:
            yield shop
        finally:
            shop.stop()  # a cancel alone may be lost in the client of NATS
        await creating
        async with asyncio.timeout(PATIENCE):
            while await _unfinished(engine, shop.ids):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.2)
    assert len(shop.ids) >= 20
    for job_id in shop.ids:
        outcomes = await engine.outcomes(job_id)
        assert [each.state for each in outcomes] == [State.COMPLETED]


async def _unfinished(engine: JetStreamEngine, ids: list[JobId]) -> list[JobId]:
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(EngineError):  # reads have no answer while a leader is chosen
                records = (await engine.load(ids)).records
                break
    return [
        job_id
        for job_id, record in zip(ids, records, strict=True)
        if record is None or record.head.state is not State.COMPLETED
    ]


async def test_workers_go_on_while_one_node_after_the_other_is_restarted(
    nats_three: NatsCluster, engine: JetStreamEngine
) -> None:
    async with busy(nats_three, engine) as shop:
        for node in nats_three.nodes:
            before = len(shop.ids)
            await asyncio.to_thread(node.restart)
            async with asyncio.timeout(PATIENCE):
                while len(shop.ids) < before + 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def test_a_node_that_has_lost_its_disk_gets_everything_again(
    nats_three: NatsCluster, engine: JetStreamEngine
) -> None:
    lost = nats_three.nodes[0]
    async with busy(nats_three, engine) as shop:
        await asyncio.to_thread(lost.kill)
        before = len(shop.ids)
        async with asyncio.timeout(PATIENCE):
            while len(shop.ids) < before + 20:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        shutil.rmtree(lost.folder / "data")
        await asyncio.to_thread(lost.start)
        await asyncio.to_thread(lost.wait)
    async with asyncio.timeout(PATIENCE):
        while not await _is_whole(engine):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    # The others are not needed any more, one at a time.
    await asyncio.to_thread(nats_three.nodes[1].kill)
    assert await _unfinished(engine, shop.ids) == []


async def _is_whole(engine: JetStreamEngine) -> bool:
    """Return whether all replicas of the jobs have everything."""
    info = await engine._link.api(f"STREAM.INFO.{engine._subjects.jobs}")
    replicas = info["cluster"]["replicas"]
    return len(replicas) == 2 and all(each.get("current") for each in replicas)


async def test_without_a_majority_nothing_is_lost_and_work_goes_on_afterwards(
    nats_three: NatsCluster, engine: JetStreamEngine
) -> None:
    async with busy(nats_three, engine) as shop:
        for node in nats_three.nodes[1:]:
            await asyncio.to_thread(node.kill)
        with pytest.raises(EngineError):
            await engine.create([a_job(type="other")])
        await asyncio.to_thread(nats_three.start)
        before = len(shop.ids)
        async with asyncio.timeout(PATIENCE):
            while len(shop.ids) < before + 20:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_jobs_are_moved_to_a_cluster_and_back(
    nats_three: NatsCluster, engine: JetStreamEngine, tmp_path: Path
) -> None:
    await found(tmp_path / "jobs.db")
    source, back = SqliteEngine(tmp_path / "jobs.db"), SqliteEngine(tmp_path / "back.db")
    await source.open()
    await back.open()
    before = await survey(source)
    await move(Endpoint(source, "file"), Endpoint(engine, "cluster"), history=True, batch_size=9)
    url = f"{nats_three.url}?prefix={engine._subjects.prefix}"
    async with stream_exporter(url) as exporter:
        here = Endpoint(engine, "cluster", exporter)
        await move(here, Endpoint(back, "back"), history=True, batch_size=9)
    assert await survey(back) == before
    await source.close()
    await back.close()


# -- an outage that is longer than the lease -------------------------------------------------------

#: Seconds; the lease is the one that workers have by default, and shorter. `make test-cluster` has
#: the longer outage.
OUTAGE: Final = 120.0 if os.environ.get("TRELLIS_TEST_NATS_NODES") == "3" else 60.0


class Task(BaseModel):
    """What a job of these tests is to do."""

    name: str


class House:
    """Two worker processes as one: handlers that tell what becomes of them."""

    def __init__(self, url: str) -> None:
        self.kinds: dict[str, Job[Task, int]] = {}
        self.services = [self._service(url), self._service(url)]
        self.begun: Counter[str] = Counter()
        #: The jobs whose handlers run now, and the keyed ones that were stopped.
        self.running: Counter[str] = Counter()
        self.stopped: set[str] = set()
        #: Lets the brief handlers return, and all.
        self.let_brief, self.let_all = asyncio.Event(), asyncio.Event()

    def _service(self, url: str) -> Service:
        service = Service("house", url)

        @service.job(name="plain", retry=Retry.fixed("100ms", attempts=9))
        async def plain(job: ActiveJob[Task]) -> int:
            return await self._run(job, self.let_all)

        @service.job(name="brief", retry=Retry.fixed("100ms", attempts=9))
        async def brief(job: ActiveJob[Task]) -> int:
            return await self._run(job, self.let_brief)

        @service.job(
            name="keyed", per_key=PerKey.in_turn("{name}"), retry=Retry.fixed("100ms", attempts=9)
        )
        async def keyed(job: ActiveJob[Task]) -> int:
            assert not self.running[f"keyed/{job.payload.name}"]
            return await self._run(job, self.let_all, f"keyed/{job.payload.name}")

        self.kinds = {"plain": plain, "brief": brief, "keyed": keyed}
        return service

    async def _run(self, job: ActiveJob[Task], let: asyncio.Event, key: str = "") -> int:
        names = [job.id, *filter(None, [key])]
        self.begun[job.id] += 1
        self.running.update(names)
        try:
            await let.wait()
        except asyncio.CancelledError:
            self.stopped.add(job.id)
            raise
        finally:
            self.running.subtract(names)
        return job.attempt


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)


async def test_an_outage_longer_than_the_lease_starts_nothing_and_settles_each_job_once(
    nats_three: NatsCluster, engine: JetStreamEngine
) -> None:
    house = House(f"{nats_three.url}?prefix={engine._subjects.prefix}")
    first, second = house.services
    async with first, second, second.worker():
        made = {
            kind: [
                JobId((await house.kinds[kind].create(Task(name=f"{number % 2}"))).id)
                for number in range(count)
            ]
            for kind, count in (("plain", 3), ("brief", 3), ("keyed", 4))
        }
        begin = [*made["plain"], *made["brief"], *made["keyed"][:2]]
        await _until(lambda: all(house.begun[each] for each in begin))
        async with first.worker():
            before = await engine.now()
            for node in nats_three.nodes[1:]:
                await asyncio.to_thread(node.kill)
            house.let_brief.set()
            await asyncio.sleep(OUTAGE)
            assert house.stopped == set(made["keyed"][:2])
            assert not any(house.running[each] for each in (*made["brief"], *made["keyed"]))
            assert all(house.running[each] for each in made["plain"])
            after = await engine.now()
            await asyncio.to_thread(nats_three.start)
            house.let_all.set()
            ids = [each for some in made.values() for each in some]
            async with asyncio.timeout(RESUMES):
                while await _unfinished(engine, ids):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
    for job_id in ids:
        (outcome,) = await engine.outcomes(job_id)
        events = await engine.journal(job_id)
        assert outcome.state is State.COMPLETED
        assert [each.kind.value for each in events].count("completed") == 1
        started = [each for each in events if each.kind.value == "started"]
        assert not [each for each in started if before < each.at < after]
    for job_id in made["brief"]:
        assert [each.kind.value for each in await engine.journal(job_id)] == [
            "created", "started", "completed",
        ]  # fmt: skip
