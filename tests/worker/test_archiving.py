"""Archiving: jobs are given to the archiver before they are removed, at least once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from trellis import ActiveJob, ConfigurationError, Service
from trellis.archive import ArchivedJob, NdjsonArchive
from trellis.config import WorkerSettings
from trellis.core.durations import micros
from trellis.declaration.extensions import Archiver
from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.insight.archived import archived_jobs
from trellis.insight.doctor import diagnose
from trellis.testing import ManualClock
from trellis.testing.builders import a_worker
from trellis.testing.conformance.archive import ended
from trellis.testing.conformance.helpers import ids, were_removed
from trellis.worker import archiving
from trellis.worker.archiving import Archiving
from trellis.worker.outage import OutageLog
from trellis.worker.session import SessionHolder
from trellis.worker.shared_status import SharedStatus
from trellis.worker.supervisor import Supervisor

NOON = datetime(2030, 5, 6, 12, tzinfo=UTC)


class Bank:
    """An archiver that keeps what it gets, and fails when it is told to."""

    def __init__(self) -> None:
        self.pages: list[list[str]] = []
        self.fails = False

    def __call__(self, jobs: list[ArchivedJob]) -> None:
        self.pages.append([each.job.id for each in jobs])
        if self.fails:
            raise OSError("disk full")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock) -> AsyncIterator[MemoryEngine]:
    engine = MemoryEngine(clock)
    await engine.open()
    yield engine
    await engine.close()


async def an_archiving(
    engine: Engine,
    bank: Callable[[list[ArchivedJob]], Awaitable[None] | None],
    *,
    overdue: float = 600.0,
) -> Archiving:
    """Return the loop of one worker process with this archiver, which it has declared."""
    session = SessionHolder(engine, a_worker(), micros("30d"), SharedStatus(1))
    await session.open()
    archivers = {"shop": Archiver(bank, secrets=False)}
    loop = Archiving(engine, session, archivers, OutageLog(), overdue=overdue)
    await loop.declare()
    return loop


async def test_jobs_are_removed_once_they_are_archived(
    engine: MemoryEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_PAGE", 2)
    bank = Bank()
    loop = await an_archiving(engine, bank)
    jobs = ids(await ended(engine, 5))
    await loop.archive("shop")
    assert bank.pages == []
    clock.advance("10s")
    await engine.prune(100)
    await loop.archive("shop")
    assert bank.pages == [jobs[:2], jobs[2:4], jobs[4:]]
    assert all(await were_removed(engine, *jobs))


async def test_an_archiver_that_fails_for_a_day_loses_nothing(
    engine: MemoryEngine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    bank.fails = True
    loop = await an_archiving(engine, bank)
    jobs = ids(await ended(engine, 3))
    clock.advance("10s")
    with caplog.at_level(logging.INFO):
        for _ in range(25):
            await engine.prune(100)
            await loop.archive("shop")
            clock.advance("1h")
    assert await were_removed(engine, *jobs) == [False] * 3
    assert "failures in a row: 25" in caplog.text
    (warning,) = (await diagnose(engine, WorkerSettings())).warnings
    assert "The archiver of shop has failed for 1 d 1 h (25 times): OSError: disk full" in warning
    assert loop._pause("shop") == 3600
    bank.fails = False
    with caplog.at_level(logging.INFO):
        await loop.archive("shop")
    assert all(await were_removed(engine, *jobs))
    assert "The archiver of shop works again." in caplog.text
    assert (await diagnose(engine, WorkerSettings())).warnings == []
    assert loop._pause("shop") == 60


async def test_a_new_process_with_a_repaired_archiver_ends_the_report_of_failures(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    bank = Bank()
    bank.fails = True
    broken = await an_archiving(engine, bank)
    jobs = ids(await ended(engine, 3))
    clock.advance("10s")
    await engine.prune(100)
    await broken.archive("shop")
    await broken._session.close()
    bank.fails = False
    repaired = await an_archiving(engine, bank)
    assert len((await diagnose(engine, WorkerSettings())).warnings) == 1
    await repaired.archive("shop")
    assert all(await were_removed(engine, *jobs))
    assert (await diagnose(engine, WorkerSettings())).warnings == []


async def test_an_archiver_may_fail_thousands_of_times(engine: MemoryEngine) -> None:
    loop = await an_archiving(engine, Bank())
    loop._failures["shop"] = 5000
    assert loop._pause("shop") == 3600


async def test_an_archiver_that_does_not_return_is_reported(
    engine: MemoryEngine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    may_return = asyncio.Event()
    noted = asyncio.Event()

    async def keep(_: list[ArchivedJob]) -> None:
        await may_return.wait()

    class Noting(MemoryEngine):
        async def note_archive(self, service: str, error: str | None) -> None:
            await super().note_archive(service, error)
            noted.set()

    engine = Noting(clock)
    await engine.open()
    loop = await an_archiving(engine, keep, overdue=0.0)
    jobs = ids(await ended(engine, 1))
    clock.advance("10s")
    await engine.prune(100)
    called = asyncio.create_task(loop.archive("shop"))
    await noted.wait()
    (warning,) = (await diagnose(engine, WorkerSettings())).warnings
    assert "has failed for under 1 s (once): it was called at" in warning
    assert "and has not returned" in warning
    assert "Give the calls in it a time limit" in caplog.text
    may_return.set()
    await called
    assert all(await were_removed(engine, *jobs))
    assert (await diagnose(engine, WorkerSettings())).warnings == []


async def test_an_archive_that_an_operator_switched_off_stays_off(
    engine: MemoryEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await an_archiving(engine, Bank())
    await engine.set_archive("shop", on=False)
    await an_archiving(engine, Bank())
    assert [each.is_on for each in await engine.archives()] == [False]
    assert "trellis archive on shop" in caplog.text
    await engine.set_archive("shop", on=True)
    await an_archiving(engine, Bank())
    assert [each.is_on for each in await engine.archives()] == [True]


async def test_one_worker_archives_for_all(engine: MemoryEngine, clock: ManualClock) -> None:
    first, second = Bank(), Bank()
    holder, other = await an_archiving(engine, first), await an_archiving(engine, second)
    await holder.archive("shop")
    jobs = ids(await ended(engine, 2))
    clock.advance("10s")
    await engine.prune(100)
    await other.archive("shop")
    await holder.archive("shop")
    assert (first.pages, second.pages) == ([jobs], [])


async def test_the_doctor_reports_that_no_worker_has_the_archiver(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    await engine.set_archive("shop", on=True)
    await ended(engine)
    clock.advance("10s")
    await engine.prune(100)
    clock.advance("1h")
    assert (await diagnose(engine, WorkerSettings())).warnings == []
    clock.advance("2h")
    (warning,) = (await diagnose(engine, WorkerSettings())).warnings
    assert "waited for their archiver for 3 h" in warning
    assert "no worker has it" in warning
    assert "trellis archive off shop" in warning
    session = SessionHolder(engine, a_worker(), micros("30d"), SharedStatus(1))
    await session.open()
    await engine.take_lock("trellis/archive/shop", session.id)
    (warning,) = (await diagnose(engine, WorkerSettings())).warnings
    assert f"worker {a_worker().name} has it and is behind" in warning


async def test_a_worker_declares_its_archive_before_it_removes_anything(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    app = Service("shop", "memory://")

    @app.archive
    async def keep(_: list[ArchivedJob]) -> None:
        raise OSError("not today")

    @app.job
    async def work() -> None: ...

    jobs = ids(await ended(engine, 2))
    clock.advance("10s")  # they expired while no worker was there
    async with Supervisor(engine, lambda: engine, app.job_types, WorkerSettings()):
        assert [each.is_on for each in await engine.archives()] == [True]
        await engine.prune(100)
    assert await were_removed(engine, *jobs) == [False, False]


class Login(BaseModel):
    user: str
    password: SecretStr


async def test_a_worker_archives_whole_jobs_with_secrets_masked(tmp_path: Path) -> None:
    app = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.job(retention="0s")
    def login(job: ActiveJob[Login]) -> str:
        job.items.complete("page-1")
        return job.payload.user

    async with app:
        async with app.worker():
            ref = await login.create(Login(user="ada", password=SecretStr("s3cret")))
            await ref.wait("10s")
        engine = await app.connection.engine()
        loaded = (await engine.load([ref.id])).records  # type: ignore[list-item]
        records = [each for each in loaded if each is not None]
        (masked,) = await archived_jobs(engine, records, secrets=False)
        (whole,) = await archived_jobs(engine, records, secrets=True)
    assert (masked.job.payload["user"], masked.job.result) == ("ada", "ada")
    assert "s3cret" not in str(masked)
    assert whole.job.payload == {"user": "ada", "password": "s3cret"}
    assert [event.kind for event in masked.events] == ["created", "started", "completed"]
    assert [(item.name, item.status) for item in masked.items] == [("page-1", "completed")]
    assert [(each.state, each.result) for each in whole.outcomes] == [("completed", "ada")]


def test_a_service_has_one_archiver_which_is_a_function() -> None:
    app = Service("shop", "memory://")
    with pytest.raises(ConfigurationError, match="is not a function"):
        app.archive("somewhere")  # type: ignore[type-var]

    @app.archive
    def keep(_: list[ArchivedJob]) -> None: ...

    with pytest.raises(ConfigurationError, match="already has an archiver"):
        app.archive(keep)


# -- files ---------------------------------------------------------------------------------------


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def _jobs(engine: MemoryEngine, count: int) -> list[ArchivedJob]:
    return await archived_jobs(engine, await ended(engine, count), secrets=False)


async def test_jobs_are_written_one_per_line_to_the_file_of_the_day(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    keep = NdjsonArchive(tmp_path / "kept", now=lambda: NOON)
    jobs = await _jobs(engine, 3)
    keep(jobs[:2])
    keep(jobs[2:])
    keep([])
    lines = (tmp_path / "kept" / "shop-2030-05-06.ndjson").read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    assert [each["job"]["id"] for each in documents] == [each.job.id for each in jobs]
    assert documents[0]["job"]["state"] == "completed"
    assert [event["kind"] for event in documents[0]["events"]] == [
        "created",
        "started",
        "completed",
    ]
    assert sorted(documents[0]) == ["events", "items", "job", "outcomes"]


@pytest.mark.parametrize(
    ("rotate", "name"), [("month", "shop-2030-05.ndjson"), ("never", "shop.ndjson")]
)
async def test_files_rotate_as_asked(
    engine: MemoryEngine, tmp_path: Path, rotate: str, name: str
) -> None:
    NdjsonArchive(tmp_path, rotate, now=lambda: NOON)(await _jobs(engine, 1))  # type: ignore[arg-type]
    assert _names(tmp_path) == [name]


async def test_a_line_that_a_crash_cut_off_spoils_no_other(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    keep = NdjsonArchive(tmp_path, "never")
    (tmp_path / "shop.ndjson").write_text('{"job": {"id": "01')
    jobs = await _jobs(engine, 1)
    keep(jobs)
    cut, line = (tmp_path / "shop.ndjson").read_text().splitlines()
    assert (cut, json.loads(line)["job"]["id"]) == ('{"job": {"id": "01', jobs[0].job.id)


def test_an_unknown_rotation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="none of day, month, never"):
        NdjsonArchive(tmp_path, "week")  # type: ignore[arg-type]
