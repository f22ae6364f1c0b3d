"""Bad files, full disks, locks and clocks: each gets a clear error and loses nothing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trellis import control
from trellis.core.commands import Command, Complete, Snooze
from trellis.core.durations import SECOND
from trellis.core.job import Fence
from trellis.core.policy import DEFAULT_POLICY, KeyPolicy, encode_policy
from trellis.engines import make_engine
from trellis.engines.sqlite import SqliteEngine, connection, errors, schema
from trellis.engines.values import Accepted, JobFilter, Renewed
from trellis.engines.worker_report import NO_REPORT, WorkerReport
from trellis.errors import (
    ConfigurationError,
    DatabaseMissing,
    DiskFull,
    EngineBusy,
    EngineClosed,
    EngineError,
    NotATrellisDatabase,
    PayloadInvalid,
    ReadOnlyDatabase,
    SchemaTooNew,
    SchemaTooOld,
    TrellisError,
    UnknownScheme,
    Unstorable,
)
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker, fence_of
from trellis.testing.clock import ManualClock


async def count(engine: SqliteEngine) -> int:
    return (await engine.count(JobFilter())).total


async def opening(path: Path, *, create: bool = True) -> str:
    """Open a file that must be refused; return what the error says."""
    engine = SqliteEngine(path, create=create)
    with pytest.raises(TrellisError) as raised:
        await engine.open()
    return f"{type(raised.value).__name__}: {raised.value}"


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("just some notes, long enough to be no SQLite header at all\n" * 4)
    before = path.read_bytes()
    text = await opening(path)
    assert text.startswith(NotATrellisDatabase.__name__)
    assert str(path) in text
    assert "Check the URL" in text
    assert path.read_bytes() == before


async def test_a_missing_file_is_not_created_for_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "absent.db"
    text = await opening(path, create=False)
    assert text.startswith(DatabaseMissing.__name__)
    assert str(path) in text
    assert "trellis migrate" in text
    assert not path.exists()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    text = await opening(tmp_path / "no" / "such" / "jobs.db")
    assert text.startswith(ReadOnlyDatabase.__name__)
    assert "folder exists" in text


async def test_tables_of_somebody_else_with_our_names_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("create table trellis_plants (name text)")
    other.close()
    before = path.read_bytes()
    assert (await opening(path)).startswith(NotATrellisDatabase.__name__)
    assert path.read_bytes() == before


async def test_a_reader_leaves_a_foreign_or_empty_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("create table plants (name text)")
    other.close()
    empty = tmp_path / "empty.db"
    empty.touch()
    for file in (path, empty):
        before = file.read_bytes()
        text = await opening(file, create=False)
        assert text.startswith(SchemaTooOld.__name__)
        assert "trellis migrate" in text
        assert file.read_bytes() == before


async def test_the_file_is_opened_for_durability_and_says_so(engine: SqliteEngine) -> None:
    health = await engine.health()
    assert health.facts["journal_mode"] == "wal"
    assert health.facts["synchronous"] == "full"
    assert health.facts["wal_autocheckpoint"] == 0
    assert health.durability.endswith("a crash of the machine and a power cut")
    writer = engine._writer
    assert writer is not None
    for name, value in (("synchronous", 2), ("wal_autocheckpoint", 0), ("journal_mode", "wal")):
        assert connection.read_setting(writer._connection, name) == value


async def test_a_new_file_is_readable_by_its_owner_only(
    engine: SqliteEngine, tmp_path: Path
) -> None:
    await engine.create([a_job()])
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("jobs.db*")} == {0o600}  # noqa: ASYNC240


async def test_the_log_is_moved_into_the_database_under_a_lock(
    engine: SqliteEngine, tmp_path: Path
) -> None:
    await engine.create([a_job() for _ in range(50)])
    writer = engine._writer
    assert writer is not None
    other = os.open(tmp_path / "jobs.db-trellis-lock", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert not writer._checkpointer.run()
    os.close(other)
    assert writer._checkpointer.run()
    with sqlite3.connect(f"file:{tmp_path / 'jobs.db'}?immutable=1", uri=True) as bare:
        assert bare.execute("select count(*) from trellis_job").fetchone() == (50,)
    bare.close()


async def test_a_database_of_the_application_gets_our_tables_beside_its_own(
    tmp_path: Path,
) -> None:
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as app:
        app.execute("create table job (name text)")
        app.execute("insert into job values ('theirs')")
    app.close()
    engine = SqliteEngine(path)
    await engine.open()
    assert await engine.create([job := a_job()]) == [Accepted(job.id)]
    await engine.close()
    with sqlite3.connect(path) as app:
        assert app.execute("select name from job").fetchall() == [("theirs",)]
    app.close()


async def test_a_newer_schema_is_refused(engine: SqliteEngine, tmp_path: Path) -> None:
    await engine.close()
    with sqlite3.connect(tmp_path / "jobs.db") as other:
        other.execute("update trellis_meta set value = 999 where name = 'schema'")
    other.close()
    text = await opening(tmp_path / "jobs.db")
    assert text.startswith(SchemaTooNew.__name__)
    assert "999" in text
    assert "Upgrade trellis-jobs" in text


async def test_an_older_schema_is_migrated_with_its_jobs(
    tmp_path: Path, next_version: Callable[[], int]
) -> None:
    path = tmp_path / "old.db"
    old = connection.connect(path, create=True)
    schema.migrate(old, path)
    before = schema.latest_version()
    old.execute("insert into trellis_lane values (1, 'shop', 'invoices', 'invoice', 0)")
    old.execute("insert into trellis_policy values (1, ?)", (encode_policy(DEFAULT_POLICY),))
    old.execute(
        "insert into trellis_job (seq, id, lane, policy, payload, created_at, traceparent, "
        "schema_version) values (1, 'OLD', 1, 1, '{}', 1, '00-1-1-00', 1)"
    )
    old.execute(
        "insert into trellis_queue (job, lane, availability, state, version, generation, attempt, "
        "claims, crashes, run_at, blocked, suspect) "
        "values (1, 1, 'ready', 'pending', 1, 0, 0, 0, 0, 1, 0, 0)"
    )
    old.execute("update trellis_meta set value = 1 where name = 'last_job'")
    old.close()
    after = next_version()
    assert (await opening(path, create=False)).startswith(SchemaTooOld.__name__)
    engine = SqliteEngine(path)
    assert (await engine.migrate())[:2] == (before, after)
    assert await engine.migrate() == (after, after, ())
    await engine.open()
    await engine.create([a_job()])
    assert await count(engine) == 2
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    taken = (await engine.claim(session, [a_demand()], 1)).jobs
    assert [record.definition.id for record in taken] == ["OLD"]
    await engine.close()


async def test_a_session_of_an_older_schema_goes_on_after_the_migration(
    tmp_path: Path, next_version: Callable[[], int]
) -> None:
    path, clock = tmp_path / "old.db", ManualClock()
    engine = SqliteEngine(path, clock=clock)
    await engine.open()
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    await engine.close()
    version = next_version()
    engine = SqliteEngine(path, clock=clock)
    await engine.open()
    assert (await engine.health()).facts["schema"] == version
    assert [(each.report, each.draining) for each in await engine.sessions()] == [
        (NO_REPORT, False)
    ]
    assert await engine.take_lock("leader", session) is None
    assert await engine.ask_drain(session)
    assert await engine.renew(session, [], (), WorkerReport(3)) == Renewed(
        clock.now(), (), (), (), True
    )
    assert [(each.report.running, each.draining) for each in await engine.sessions()] == [(3, True)]
    await engine.close()


def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from trellis.engines.sqlite import SqliteEngine\n"
        "from trellis.testing.builders import a_job\n"
        "async def main():\n"
        "    engine = SqliteEngine(sys.argv[1])\n"
        "    sys.stdin.readline()\n"
        "    await engine.open()\n"
        "    await engine.create([a_job() for _ in range(10)])\n"
        "    await engine.close()\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "race.db"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        _, problem = child.communicate(timeout=60)
        assert child.returncode == 0, problem
    with sqlite3.connect(path) as file:
        assert file.execute("select count(*) from trellis_job").fetchone() == (40,)
    file.close()


async def test_a_locked_database_is_a_typed_error_and_nothing_is_lost(
    engine: SqliteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.engines.sqlite.writer.BUSY_SECONDS", 0.05)
    await engine.create([a_job()])
    blocker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    blocker.execute("begin immediate")
    job = a_job()
    with pytest.raises(EngineBusy, match="Nothing was stored; try again"):
        await engine.create([job])
    assert await count(engine) == 1
    blocker.execute("rollback")
    blocker.close()
    assert await engine.create([job]) == [Accepted(job.id)]
    assert await count(engine) == 2


async def test_a_lock_that_ends_in_time_is_waited_for(
    engine: SqliteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    blocker.execute("begin immediate")
    met = threading.Event()
    honest = errors.is_busy

    def notice(error: sqlite3.Error) -> bool:
        met.set()
        return honest(error)

    monkeypatch.setattr(connection, "is_busy", notice)
    waiting = asyncio.create_task(engine.create([a_job()]))
    assert await asyncio.to_thread(met.wait, 30)  # the writer has found the lock taken
    blocker.execute("commit")
    blocker.close()
    assert len(await waiting) == 1


async def test_a_full_disk_is_a_typed_error_and_nothing_is_lost(engine: SqliteEngine) -> None:
    await engine.create([a_job() for _ in range(5)])
    writer = engine._writer
    assert writer is not None
    # A page limit makes SQLite say SQLITE_FULL at the same places as a full disk does.
    (pages,) = writer._connection.execute("pragma page_count").fetchone()
    writer._connection.execute(f"pragma max_page_count = {pages + 2}").fetchone()
    big = [a_job(payload='"' + "x" * 50_000 + '"') for _ in range(10)]
    with pytest.raises(DiskFull, match="free some space and try again"):
        await engine.create(big)
    assert await count(engine) == 5
    writer._connection.execute("pragma max_page_count = 1000000").fetchone()
    assert await engine.create(big) == [Accepted(job.id) for job in big]
    assert await count(engine) == 15


async def test_calls_that_share_a_transaction_with_a_failing_one_are_kept(
    engine: SqliteEngine,
) -> None:
    # It writes one job before it fails, so that there is something to undo.
    bad = [a_job(), a_job(dedupe="x"), a_job(config="\ud800")]
    good = [a_job() for _ in range(20)]
    answers = await asyncio.gather(
        *(engine.create([job]) for job in good[:10]),
        engine.create(bad),
        *(engine.create([job]) for job in good[10:]),
        return_exceptions=True,
    )
    assert isinstance(answers.pop(10), PayloadInvalid)
    assert answers == [[Accepted(job.id)] for job in good]
    assert await count(engine) == 20


async def test_a_read_only_database_is_refused(engine: SqliteEngine, tmp_path: Path) -> None:
    await engine.create([a_job()])
    writer = engine._writer
    assert writer is not None
    # Root writes everywhere, so the permission is taken away inside SQLite, for any user alike.
    writer._connection.execute("pragma query_only = on")
    with pytest.raises(ReadOnlyDatabase, match="write permission"):
        await engine.create([a_job()])
    writer._connection.execute("pragma query_only = off")
    assert await count(engine) == 1


def test_a_read_only_folder_is_refused_for_an_ordinary_user(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys\n"
        "from trellis.engines.sqlite import SqliteEngine\n"
        "from trellis.errors import ReadOnlyDatabase\n"
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"
        "try:\n"
        "    asyncio.run(SqliteEngine(sys.argv[1]).open())\n"
        "except ReadOnlyDatabase as error:\n"
        "    print(error)\n"
    )
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    run = subprocess.run(
        [sys.executable, "-c", script, str(folder / "jobs.db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert run.returncode == 0, run.stderr
    assert "cannot be" in run.stdout
    assert "write there" in run.stdout


def let_read(folder: Path) -> None:
    """Let users only read the files in this folder."""
    for path in folder.iterdir():
        path.chmod(0 if "lock" in path.name else 0o444)
    folder.chmod(0o555)


def remove(folder: Path) -> None:
    folder.chmod(0o700)
    shutil.rmtree(folder)


async def test_a_user_who_may_only_read_reads_while_another_program_has_the_file_open() -> None:
    script = (
        "import asyncio, os, sys\n"
        "from trellis.engines.sqlite import SqliteEngine\n"
        "from trellis.engines.values import JobFilter\n"
        "from trellis.errors import ReadOnlyDatabase\n"
        "from trellis.testing.builders import a_job\n"
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"
        "async def main():\n"
        "    engine = SqliteEngine(sys.argv[1], create=False)\n"
        "    await engine.open()\n"
        "    print(len((await engine.find(JobFilter())).jobs))\n"
        "    try:\n"
        "        await engine.create([a_job()])\n"
        "    except ReadOnlyDatabase as error:\n"
        "        print(error)\n"
        "    await engine.close()\n"
        "asyncio.run(main())\n"
    )
    folder = Path(tempfile.mkdtemp(prefix="trellis-"))  # outside of folders of this user alone
    engine = SqliteEngine(folder / "jobs.db")
    await engine.open()
    try:
        await engine.create([a_job()])
        let_read(folder)
        run = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script, str(folder / "jobs.db")],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    finally:
        await engine.close()
        remove(folder)
    assert run.returncode == 0, run.stderr
    found, refusal = run.stdout.splitlines()
    assert found == "1"
    assert "cannot be written" in refusal


async def test_a_closed_engine_says_so(engine: SqliteEngine) -> None:
    await engine.close()
    with pytest.raises(EngineClosed, match="Open it again"):
        await engine.create([a_job()])
    with pytest.raises(EngineClosed, match="Open it again"):
        await engine.load([a_job().id])


async def test_an_engine_carried_over_a_fork_refuses_to_work(engine: SqliteEngine) -> None:
    engine._pid -= 1
    with pytest.raises(EngineClosed, match="before a fork"):
        await engine.create([a_job()])


async def test_a_stepped_wall_clock_lapses_no_lease_and_a_reboot_lapses_all(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    engine = SqliteEngine(tmp_path / "clock.db", clock=clock)
    await engine.open()
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    await engine.create([a_keyed_job("k", KeyPolicy("k"))])
    await engine.claim(session, [a_demand()], 1)
    clock.step_wall("30d")
    assert (await engine.due("sessions", 10)).sessions == ()
    clock.step_wall("60d", back=True)
    assert (await engine.due("sessions", 10)).sessions == ()
    clock.reboot()
    assert (await engine.due("sessions", 10)).sessions == (session,)
    await engine.close()


@pytest.mark.parametrize(
    ("url", "error", "hint"),
    [
        ("mysql://x", UnknownScheme, "sqlite:///path"),
        ("jobs.db", ConfigurationError, "sqlite:///path"),
        ("sqlite://", ConfigurationError, "has no path to a file"),
        ("sqlite://jobs.db", ConfigurationError, "has no path to a file"),
        ("sqlite:///:memory:", ConfigurationError, "memory://"),
        ("sqlite:///jobs.db?mode=ro", ConfigurationError, "options"),
    ],
)
def test_a_wrong_url_says_how_a_right_one_looks(
    url: str, error: type[TrellisError], hint: str
) -> None:
    with pytest.raises(error, match=hint):
        make_engine(url)


@pytest.mark.parametrize(
    "command",
    [lambda fence: Snooze(fence, 2**80), lambda fence: Complete(fence, '"' + "x" * 5000 + '"')],
    ids=["a number too large", "a text too long"],
)
async def test_values_that_cannot_be_stored_are_called_so(
    engine: SqliteEngine, command: Callable[[Fence], Command]
) -> None:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    await engine.create([a_job()])
    (taken,) = (await engine.claim(session, [a_demand()], 1)).jobs
    writer = engine._writer
    assert writer is not None
    writer._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4000)
    with pytest.raises(Unstorable, match="Nothing of this call was stored"):
        await control.apply_all(engine, [(taken, command(fence_of(taken)))], await engine.now())
    (record,) = (await engine.load([taken.definition.id])).records
    assert record == taken


async def test_a_file_that_was_moved_elsewhere_does_not_blame_the_values(
    engine: SqliteEngine, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "jobs.db") as file:
        file.execute(
            "create trigger moved before insert on trellis_job "
            "begin select raise(abort, 'its jobs were moved'); end"
        )
    file.close()
    with pytest.raises(EngineError, match="its jobs were moved"):
        await engine.create([a_job()])
