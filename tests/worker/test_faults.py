"""A worker whose database is locked, full, unwritable or moved away logs it and loses nothing.

The faults are SQLite's own, made on the very connections the worker uses.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.worker.faulty import eventually
from trellis import ActiveJob, Job, JobRef, Service
from trellis.core.fold import fold
from trellis.core.job import JobId
from trellis.engines.sqlite import SqliteEngine, connection
from trellis.engines.values import JobFilter
from trellis.errors import DatabaseMissing, DiskFull, EngineBusy, EngineError, ReadOnlyDatabase
from trellis.worker.supervisor import Supervisor

#: Results that need pages of their own.
LONG = "x" * 60_000


class Scene:
    """A service with a worker whose database can be taken away."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.service = Service("shop", f"sqlite:///{path}")
        self.go_on = asyncio.Event()
        self.began: list[str] = []
        self.ended: list[str] = []
        self.connections: list[sqlite3.Connection] = []
        self.work: Job[None, str] = self.service.job(name="work")(self._work)

    async def _work(self, job: ActiveJob[None]) -> str:
        self.began.append(job.id)
        await self.go_on.wait()
        job.log.info("logged by the handler")
        self.ended.append(job.id)
        return LONG

    @asynccontextmanager
    async def working(self) -> AsyncIterator[tuple[Supervisor, list[JobRef[str]]]]:
        """Work, with three handlers under way."""
        async with self.service.worker(lease="600ms", poll="50ms") as worker:
            refs = [await self.work.create() for _ in range(3)]
            await eventually(lambda: len(self.began) == len(refs))
            yield worker, refs

    async def check(self, refs: list[JobRef[str]]) -> None:
        """Everything ran once, ended once, and is stored as reported."""
        await asyncio.gather(*(ref.wait("30s") for ref in refs))
        ids = sorted(ref.id for ref in refs)
        assert (sorted(self.began), sorted(self.ended)) == (ids, ids)
        engine = SqliteEngine(self.path, create=False)
        await engine.open()
        for ref in refs:
            events = await engine.journal(JobId(ref.id))
            assert [str(event.kind) for event in events] == ["created", "started", "completed"]
            (record,) = (await engine.load([JobId(ref.id)])).records
            assert record is not None
            assert fold(events) == record.head
            (outcome,) = await engine.outcomes(JobId(ref.id))
            assert outcome.result == f'"{LONG}"'
            assert [line.message for line in await engine.logs(JobId(ref.id))] == [
                "logged by the handler"
            ]
        await engine.close()

    def set_pragma(self, pragma: str) -> None:
        """Set something on every connection this process has to the file."""
        for each in self.connections:
            with suppress(sqlite3.ProgrammingError):  # closed in the meantime
                each.execute(f"pragma {pragma}").fetchall()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Another program holds a transaction open."""
        other = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.patiently(lambda: other.execute("begin immediate"), 20)
            yield
        finally:
            other.close()

    @contextmanager
    def full(self) -> Iterator[None]:
        """There is no page left on the disk."""
        self.set_pragma("max_page_count = 1")  # SQLite takes it for: no more than there are
        yield
        self.set_pragma("max_page_count = 1000000")

    @contextmanager
    def unwritable(self) -> Iterator[None]:
        """The permission to write is gone."""
        self.set_pragma("query_only = on")
        yield
        self.set_pragma("query_only = off")


Fault = Callable[[Scene], AbstractContextManager[None]]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    folder = tmp_path / "place"
    folder.mkdir()
    scene = Scene(folder / "jobs.db")

    def connect(path: Path, *, create: bool) -> sqlite3.Connection:
        scene.connections.append(connection.connect(path, create=create))
        return scene.connections[-1]

    monkeypatch.setattr("trellis.engines.sqlite.engine.connect", connect)
    monkeypatch.setattr("trellis.engines.sqlite.writer.BUSY_SECONDS", 0.05)
    return scene


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (
            Scene.locked,
            EngineBusy,
            "was locked by another program for too long. Nothing was stored",
        ),
        (Scene.full, DiskFull, "is full. Nothing of this call was stored; free some space and try"),
        (Scene.unwritable, ReadOnlyDatabase, "cannot be written. Give this user write permission"),
    ],
    ids=["locked", "full", "unwritable"],
)
async def test_settlements_wait_until_the_database_takes_them(
    scene: Scene,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    error: type[EngineError],
    words: str,
) -> None:
    async with scene.working() as (worker, refs):
        with fault(scene):
            scene.go_on.set()
            await eventually(lambda: "The engine does not answer" in caplog.text)
            assert str(scene.path) in caplog.text
            assert words in caplog.text
            with pytest.raises(error, match=words):
                await scene.work.create_many([None] * 50)
            assert worker.settled == 0
        await scene.check(refs)


@pytest.mark.parametrize("fault", [Scene.locked, Scene.unwritable])
async def test_an_outage_longer_than_the_lease_stops_no_handler_and_starts_none_twice(
    scene: Scene, fault: Fault
) -> None:
    async with scene.working() as (worker, refs):
        with fault(scene):
            await eventually(worker._health.lease_may_have_expired)
            scene.go_on.set()
            await eventually(lambda: len(scene.ended) == len(refs))
        refs.append(await scene.work.create())
        await scene.check(refs)


async def test_a_folder_that_is_moved_away_and_back_costs_nothing(scene: Scene) -> None:
    away = scene.path.parent.with_name("elsewhere")
    async with scene.working() as (_, refs):
        scene.path.parent.rename(away)
        stranger = Service("shop", f"sqlite:///{scene.path}")
        with pytest.raises(ReadOnlyDatabase, match="Check that its folder exists"):
            await stranger.declare("work", payload=None, result=str).create()
        with pytest.raises(DatabaseMissing, match="Move the file back"):
            await scene.work.create()
        scene.go_on.set()
        await eventually(lambda: len(scene.ended) == len(refs))
        away.rename(scene.path.parent)
        refs.append(await scene.work.create())
        await scene.check(refs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_handler_may_fork_and_its_child_may_create_jobs(scene: Scene) -> None:
    @scene.service.job
    def multiply(times: int) -> int:
        children = []
        for _ in range(times):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    scene.work.create_sync()
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        return sum(os.waitpid(child, 0)[1] == 0 for child in children)

    scene.go_on.set()
    async with scene.working() as (_, refs):
        assert await (await multiply.create(3)).wait("30s") == 3
        engine = await scene.service.connection.engine()
        page = await engine.find(JobFilter(types=("work",)))
        born = [scene.work.ref(record.definition.id) for record in page.jobs]
        assert len(born) == len(refs) + 3
        await scene.check(born)
