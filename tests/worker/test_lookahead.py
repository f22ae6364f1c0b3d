"""Looking ahead strands nothing: no due job waits while a slot that could run it is free.

Two workers on one file leave records: the engine's times in the journal, and the handlers' own.
They are checked afterwards against the promise: a job that waits beside a free slot is claimed
within one poll and one claim.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import pytest

from tests.worker.waiting_times import Stall, Stranded, Work, Worker, stranded
from trellis import ActiveJob, Service
from trellis.config import WorkerSettings
from trellis.core.durations import SECOND
from trellis.core.events import EventKind
from trellis.core.job import JobId, SessionId
from trellis.engines.port import Engine
from trellis.worker.fetcher import BATCH, Planner
from trellis.worker.local_type import LocalType

pytestmark = pytest.mark.long

SLOTS: Final = 2
QUICK: Final = ("quick", 0.0)
#: How long a claim may take on a busy machine.
CLAIM: Final = SECOND // 4
PATIENCE: Final = WorkerSettings().poll + CLAIM
#: A loop that stood still for this long was not given the processor.
_STANDSTILL: Final = SECOND // 5
#: The records are about waiting for slots, not about waiting for a disk.
_FAST: Final = Path("/dev/shm")  # noqa: S108 - a private folder is made inside


class Effect(NamedTuple):
    """The record of a handler: which job it ran, where and when."""

    job_id: JobId
    worker: str
    began: int
    ended: int


class TwoWorkers:
    """Two workers, each with its own connection, and the records they leave behind."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._effects: list[Effect] = []
        self._stalls: list[Stall] = []
        self._services: dict[str, Service] = {}
        self._types: frozenset[str] = frozenset()

    @asynccontextmanager
    async def open(self, *types: str) -> AsyncIterator[None]:
        """Have two workers serve these types."""
        self._types = frozenset(types)
        self._services = {name: self._service(name) for name in ("one", "two")}
        async with AsyncExitStack() as stack:
            for service in self._services.values():
                await stack.enter_async_context(service.worker(concurrency=SLOTS))
            watch = asyncio.create_task(self._watch_the_clock())
            stack.callback(watch.cancel)
            yield

    def _service(self, name: str) -> Service:
        service = Service("shop", self._url)

        async def run(job: ActiveJob[float]) -> None:
            began = _now()
            if job.payload:
                await asyncio.sleep(job.payload)
            self._effects.append(Effect(JobId(job.id), name, began, _now()))

        for job_type in self._types:
            service.job(name=job_type)(run)
        return service

    async def _watch_the_clock(self) -> None:
        seen = _now()
        while True:
            await asyncio.sleep(0.02)
            before, seen = seen, _now()
            if seen - before > _STANDSTILL:
                self._stalls.append((before, seen))

    async def run(self, *jobs: tuple[str, float]) -> None:
        """Create these jobs, type and seconds each, in this order, and wait until they end."""
        front = self._services["one"]
        refs = [await front.find(name).create(seconds) for name, seconds in jobs]
        await asyncio.gather(*(ref.wait("60s") for ref in refs))

    async def warm_up(self, name: str) -> None:
        """Let both workers measure that this type is quick."""
        for _ in range(4):
            await self.run(*[(name, 0.0)] * 15)

    async def stranded_jobs(self) -> list[Stranded]:
        """Combine the records; return every job that waited beside a free slot."""
        engine = await self._services["one"].connection.engine()
        sessions = sorted(await engine.sessions(), key=lambda each: each.opened_at)
        names = dict(zip((each.id for each in sessions), self._services, strict=True))
        done = [await self._work(engine, effect, names) for effect in self._effects]
        end = max(each.ended for each in done)
        workers = [
            Worker(names[each.id], SLOTS, self._types, each.opened_at, end) for each in sessions
        ]
        return stranded(workers, done, PATIENCE, self._stalls)

    async def _work(self, engine: Engine, effect: Effect, names: dict[SessionId, str]) -> Work:
        """Return when and where a job ran; the records of engine and handler must agree."""
        (record,) = (await engine.load([effect.job_id])).records
        created, *events = await engine.journal(effect.job_id)
        ended = events[-1]
        started = [each for each in events if each.kind is EventKind.STARTED][-1]
        assert record is not None
        assert ended.fence is not None
        assert (started.fence, names[ended.fence.session]) == (ended.fence, effect.worker)
        # A settlement bears the engine's time as its worker knew it.
        assert started.at <= effect.began <= effect.ended <= ended.at + CLAIM
        return Work(effect.job_id, record.definition.type, created.at, *effect[1:])


def _now() -> int:
    return time.time_ns() // 1000


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[TwoWorkers]:
    with TemporaryDirectory(dir=_FAST if _FAST.is_dir() else tmp_path) as folder:
        yield TwoWorkers(f"sqlite:///{folder}/jobs.db")


async def _a_small_backlog(workers: TwoWorkers) -> list[Stranded]:
    """Run long jobs and quick ones, mixed, after both workers measured which ones are quick."""
    async with workers.open("slow", "quick"):
        await workers.warm_up("quick")
        long_jobs = [("slow", 0.5 + place % 3 / 4) for place in range(10)]
        await workers.run(*chain.from_iterable((each, *[QUICK] * 2) for each in long_jobs))
        return await workers.stranded_jobs()


async def test_long_jobs_beside_quick_ones_never_wait_beside_a_free_slot(
    workers: TwoWorkers,
) -> None:
    assert await _a_small_backlog(workers) == []


async def test_a_type_that_turns_slow_is_handed_back_and_not_taken_again(
    workers: TwoWorkers,
) -> None:
    async with workers.open("quick"):
        await workers.warm_up("quick")
        await workers.run(*[("quick", 2.0)] * 4)
        assert await workers.stranded_jobs() == []


async def test_a_worker_that_always_looks_ahead_is_noticed(
    workers: TwoWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalType, "is_quick", property(lambda _: True))
    monkeypatch.setattr(Planner, "_jobs_ahead", lambda *_: BATCH)
    assert await _a_small_backlog(workers)
