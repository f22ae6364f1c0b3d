"""A projection that does not fit its streams, or cannot be read, is made again; jobs go on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import cast

import pytest

from tests.admin.conftest import Serving
from trellis.admin import opening, projector
from trellis.admin.runtime import AdminRuntime
from trellis.core.durations import SECOND
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import JobFilter, Note, Progress
from trellis.errors import ConfigurationError
from trellis.testing.builders import a_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept, start


def _set(path: Path, change: str) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"update trellis_projection set {change}")  # noqa: S608 - texts of this file
        file.commit()


def _delete(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - what is waited for is a line of the log
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("last_seq = last_seq + 1000", "the stream ends at"),
        ("schema = 0", "an older version"),
        ("stream_id = stream_id - 1", "the stream was made again"),
    ],
)
async def test_one_that_does_not_fit_is_made_again_and_the_log_says_why(  # noqa: PLR0917 - fixtures
    engine: Engine,
    tables: Engine,
    serving: Serving,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: str,
    says: str,
) -> None:
    await accept(engine, a_job(), a_job())
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
    _set(tmp_path / "projection.db", change)
    await accept(engine, a_job())
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
        assert (await engine.count(JobFilter())).total == 3
    assert says in caplog.text


@pytest.mark.parametrize("is_late", [True, False])
async def test_one_that_may_lack_deletions_is_made_again(  # noqa: PLR0917 - fixtures
    engine: Engine,
    tables: Engine,
    serving: Serving,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
) -> None:
    await accept(engine, a_job())
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
    _set(tmp_path / "projection.db", "rebuilt_at = 0")
    await accept(engine, a_job())
    if is_late:
        monkeypatch.setattr(projector, "KEEP_EMPTY", -SECOND)
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
        assert (await engine.count(JobFilter())).total == 2
    assert ("states which are over were deleted" in caplog.text) == is_late


async def test_one_of_a_newer_version_is_left_alone(
    engine: Engine,
    tables: Engine,
    serving: Serving,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await accept(engine, a_job())
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
    _set(tmp_path / "projection.db", "schema = 99")
    async with serving(tables):
        await _until(lambda: "a newer version of Trellis" in caplog.text)
    assert (await tables.count(JobFilter())).total == 1


async def test_streams_that_are_made_again_are_followed_by_a_running_runtime(
    engine: Engine, runtime: AdminRuntime, tables: Engine, link: Link, subjects: Subjects
) -> None:
    await accept(engine, *(a_job() for _ in range(4)))
    assert await runtime.answers.catch_up()
    for part in reversed(topology.parts(subjects, 1)):
        if part.consumer is None:
            await link.api(f"STREAM.DELETE.{part.stream}")
    await topology.migrate(link, subjects, 1, dry_run=False)
    new = await accept(engine, a_job(type="other"))
    assert await runtime.answers.catch_up()
    async with asyncio.timeout(20):
        while (found := (await tables.find(JobFilter())).jobs) != tuple(new):
            assert len(found) != 1, found
            await asyncio.sleep(0.01)


async def test_a_message_that_cannot_be_read_is_left_out(
    engine: Engine,
    runtime: AdminRuntime,
    link: Link,
    subjects: Subjects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await accept(engine, a_job())
    foreign = [f"{subjects.prefix}.jobs.shop.invoice.x.created", subjects.own("batch", "b")]
    for subject in foreign:
        await link.write(Message(subject, b'{"foreign": true}'))
    await accept(engine, a_job())
    assert await runtime.answers.catch_up()
    assert (await engine.count(JobFilter())).total == 2
    assert all(subject in caplog.text for subject in foreign)


async def test_a_note_that_cannot_be_read_hides_nothing_else_and_is_logged_once_for_its_job(
    engine: Engine, runtime: AdminRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    job = await start(engine, await a_session(engine), a_job())
    job_id, row = job.definition.id, job.definition.row
    bad = Progress(0.5, cast("float", "step 1"))  # as earlier versions stored it
    for body in (Progress(1, 2), bad, bad, bad):
        await engine.note([Note(row, 1, fence_of(job), body)])
    assert await runtime.answers.catch_up()
    activity = await engine.activity(job_id)
    assert activity is not None
    assert activity.progress == Progress(1, 2)
    assert (await engine.items(job_id), await engine.logs(job_id)) == ([], [])
    assert (await engine.count(JobFilter())).total == 1
    assert caplog.text.count("cannot be read") == 1
    assert job_id in caplog.text


async def test_a_database_with_jobs_of_its_own_is_refused(tables: Engine, serving: Serving) -> None:
    await accept(tables, a_job())
    with pytest.raises(ConfigurationError, match="jobs of its own"):
        async with serving(tables):
            pass
    assert (await tables.count(JobFilter())).total == 1


# -- files -------------------------------------------------------------------------------------


@asynccontextmanager
async def _served(url: str, path: Path) -> AsyncIterator[asyncio.Event]:
    """Serve from a file; the event is set when a runtime is ready, and by each further one."""
    ended, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(opening.serve(url, str(path), ended, ready.set))
    try:
        async with asyncio.timeout(20):
            await ready.wait()
        yield ready
    finally:
        ended.set()
        await task


@pytest.fixture
def url(nats_url: str, subjects: Subjects) -> str:
    return f"{nats_url}?prefix={subjects.prefix}"


async def test_a_damaged_file_is_set_aside_and_the_projection_made_again(
    url: str, engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.sqlite"
    await accept(engine, *(a_job() for _ in range(3)))
    async with _served(url, path):
        assert (await engine.count(JobFilter())).total == 3
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    async with _served(url, path):
        assert (await engine.count(JobFilter())).total == 3
    assert path.with_name("jobs.sqlite.aside").exists()
    assert "is damaged" in caplog.text


async def test_a_file_of_a_newer_schema_is_set_aside(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.sqlite"
    await accept(engine, a_job())
    async with _served(url, path):
        assert (await engine.count(JobFilter())).total == 1
    with closing(sqlite3.connect(path)) as file:
        file.execute("update trellis_meta set value = 99 where name like '%schema%'")
        file.commit()
    async with _served(url, path):
        assert (await engine.count(JobFilter())).total == 1
    assert path.with_name("jobs.sqlite.aside").exists()


async def test_a_file_that_is_deleted_while_it_is_served_is_made_again(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.sqlite"
    await accept(engine, a_job())
    async with _served(url, path) as ready:
        assert (await engine.count(JobFilter())).total == 1
        ready.clear()
        await asyncio.to_thread(_delete, path)
        async with asyncio.timeout(20):
            await ready.wait()
        assert (await engine.count(JobFilter())).total == 1
    tables = SqliteEngine(path)
    await tables.open()
    assert (await tables.count(JobFilter())).total == 1
    await tables.close()


async def test_a_projection_of_another_deployment_is_refused_and_kept(
    engine: Engine, tables: Engine, serving: Serving, nats_url: str
) -> None:
    await accept(engine, a_job())
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
    other = AdminRuntime(Link([nats_url]), Subjects("other"), tables)
    with pytest.raises(ConfigurationError, match="another deployment"):
        await other.open()
    assert (await tables.count(JobFilter())).total == 1


async def test_a_restored_stream_fits_if_it_has_its_identity_and_not_with_another(
    subjects: Subjects, link: Link
) -> None:
    info = await link.api(f"STREAM.INFO.{subjects.jobs}")
    known = topology.identity_of(info)
    # After a restore, each replica says that its stream was made at another time.
    assert topology.identity_of({**info, "created": "2026-01-02T03:04:05Z"}) == known
    # `migrate` keeps it, whatever it changes.
    config = {**info["config"], "max_age": 10**18}
    await link.api(f"STREAM.UPDATE.{subjects.jobs}", config)
    await topology.migrate(link, subjects, 1, dry_run=False)
    info = await link.api(f"STREAM.INFO.{subjects.jobs}")
    assert (info["config"]["max_age"], topology.identity_of(info)) == (0, known)
    await link.api(f"STREAM.DELETE.{subjects.jobs}")
    await topology.migrate(link, subjects, 1, dry_run=False)
    assert topology.identity_of(await link.api(f"STREAM.INFO.{subjects.jobs}")) != known
