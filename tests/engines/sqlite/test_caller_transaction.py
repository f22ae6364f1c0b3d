"""Creating on the application's own sqlite3 connection: which ones are refused, which must work."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession

from trellis.core.admission import Reason
from trellis.core.policy import KeyPolicy
from trellis.engines.sqlite import SqliteEngine, connection, schema
from trellis.engines.values import Accepted, Coalesced, CreateResult, JobFilter
from trellis.errors import (
    DatabaseMissing,
    DiskFull,
    EngineBusy,
    EngineError,
    NotATrellisDatabase,
    PayloadInvalid,
    ReadOnlyDatabase,
    SchemaTooNew,
    SchemaTooOld,
    TransactionRefused,
    TrellisError,
)
from trellis.testing.builders import a_job, a_keyed_job


@pytest.fixture
def app(engine: SqliteEngine, path: Path) -> Iterator[sqlite3.Connection]:
    """The application's connection, to a file with a table of its own."""
    app = sqlite3.connect(path, timeout=30)
    app.execute("create table orders (name text)")
    yield app
    app.close()


async def count(engine: SqliteEngine) -> int:
    return (await engine.count(JobFilter())).total


def refusal(engine: SqliteEngine, caller: object, error: type[TrellisError]) -> str:
    """Ask with a connection that must be refused; return what the error says."""
    with pytest.raises(error) as raised:
        engine.create_within(caller, [a_job()])
    return str(raised.value)


def orders(app: sqlite3.Connection) -> list[str]:
    return [name for (name,) in sqlite3.Cursor(app).execute("select name from orders")]


# -- SQLAlchemy ------------------------------------------------------------------------------------


@pytest.fixture
def store(engine: SqliteEngine, app: sqlite3.Connection, path: Path) -> Iterator[sqlalchemy.Engine]:
    """The application's database as SQLAlchemy sees it."""
    store = sqlalchemy.create_engine(f"sqlite:///{path}")
    yield store
    store.dispose()


SESSIONS: dict[str, Callable[[sqlalchemy.Engine], Any]] = {
    "connection": sqlalchemy.Engine.connect,
    "session": orm.Session,
    "scoped session": lambda store: orm.scoped_session(orm.sessionmaker(store)),
}
_WRITE = sqlalchemy.text("insert into orders values ('one')")


@pytest.mark.parametrize("before", [True, False], ids=["rows first", "job first"])
@pytest.mark.parametrize("make", SESSIONS.values(), ids=SESSIONS)
async def test_a_job_joins_the_transaction_of_sqlalchemy(
    engine: SqliteEngine,
    app: sqlite3.Connection,
    store: sqlalchemy.Engine,
    make: Callable[[sqlalchemy.Engine], Any],
    before: bool,
) -> None:
    session = make(store)
    for end, expected in ((session.rollback, 0), (session.commit, 1)):
        if before:
            session.execute(_WRITE)
        engine.create_within(session, [a_job()])
        if not before:
            session.execute(_WRITE)
        assert await count(engine) == 0
        end()
        assert (await count(engine), len(orders(app))) == (expected, expected)
    session.close()


def test_another_database_of_sqlalchemy_is_refused(engine: SqliteEngine) -> None:
    other = sqlalchemy.create_engine("sqlite://")
    with other.connect() as caller:
        assert "is to a database in memory" in refusal(engine, caller, TransactionRefused)
    other.dispose()


def test_a_failed_session_of_sqlalchemy_is_refused(
    engine: SqliteEngine, store: sqlalchemy.Engine
) -> None:
    class Base(orm.DeclarativeBase): ...

    class Order(Base):
        __tablename__ = "orders"
        name = orm.mapped_column(sqlalchemy.Text, primary_key=True)
        missing = orm.mapped_column(sqlalchemy.Text)

    with orm.Session(store) as session:
        session.add(Order(name="one"))
        with pytest.raises(sqlalchemy.exc.OperationalError):
            session.flush()
        assert "failed before" in refusal(engine, session, TransactionRefused)


def test_what_sqlalchemy_runs_elsewhere_or_commits_itself_is_refused(
    engine: SqliteEngine, store: sqlalchemy.Engine
) -> None:
    awaited = AsyncSession()
    assert "AsyncSession uses SQLite in a thread" in refusal(engine, awaited, TransactionRefused)
    assert "Pass one, a Session or Connection" in refusal(engine, store, TransactionRefused)
    with store.connect().execution_options(isolation_level="AUTOCOMMIT") as caller:
        assert "no open transaction" in refusal(engine, caller, TransactionRefused)


# -- whose transaction it is -----------------------------------------------------------------------


async def test_the_application_s_rows_and_the_job_are_committed_together(
    engine: SqliteEngine, app: sqlite3.Connection
) -> None:
    app.execute("insert into orders values ('one')")
    job = a_job()
    assert engine.create_within(app, [job]) == [Accepted(job.id)]
    assert await count(engine) == 0
    app.commit()
    assert (await count(engine), orders(app)) == (1, ["one"])


async def test_the_application_s_rows_and_the_job_are_rolled_back_together(
    engine: SqliteEngine, app: sqlite3.Connection
) -> None:
    with suppress(LookupError), app:
        app.execute("insert into orders values ('one')")
        engine.create_within(app, [a_job()])
        raise LookupError
    assert (await count(engine), orders(app)) == (0, [])


@pytest.mark.parametrize("level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
async def test_a_connection_that_begins_by_itself_may_begin_with_the_job(
    engine: SqliteEngine, app: sqlite3.Connection, level: str
) -> None:
    app.isolation_level = level  # type: ignore[assignment] # typeshed names no words
    for end, expected in ((app.rollback, 0), (app.commit, 1)):
        engine.create_within(app, [a_job()])
        assert app.in_transaction
        app.execute("insert into orders values ('after')")
        end()
        assert (await count(engine), len(orders(app))) == (expected, expected)


class Modern(sqlite3.Connection):
    """A connection as Python 3.12 makes one with `autocommit=True`."""

    autocommit = True


async def test_without_a_transaction_and_without_implicit_ones_the_caller_must_begin(
    engine: SqliteEngine, app: sqlite3.Connection, path: Path
) -> None:
    app.isolation_level = None
    modern = sqlite3.connect(path, factory=Modern)
    for caller in (app, modern):
        text = refusal(engine, caller, TransactionRefused)
        assert "Execute BEGIN IMMEDIATE first" in text
        assert not caller.in_transaction
        caller.execute("begin")
        engine.create_within(caller, [a_job()])
        caller.execute("commit")
    modern.close()
    assert await count(engine) == 2


async def test_a_savepoint_of_the_caller_can_undo_the_job_alone(
    engine: SqliteEngine, app: sqlite3.Connection
) -> None:
    app.execute("insert into orders values ('kept')")
    for name in ("mine", "part", "trellis_caller"):
        app.execute(f"savepoint {name}")
        engine.create_within(app, [a_job(), a_job(dedupe=name)])
        app.execute(f"rollback to {name}")
        app.execute(f"release {name}")
    app.commit()
    assert (await count(engine), orders(app)) == (0, ["kept"])


# -- whose file it is ------------------------------------------------------------------------------


async def test_what_is_no_sqlite3_connection_is_refused(
    engine: SqliteEngine, app: sqlite3.Connection, path: Path
) -> None:
    for caller in (object(), None, str(path), app.cursor()):
        text = refusal(engine, caller, TransactionRefused)
        assert f"{type(caller).__name__} is not a sqlite3.Connection" in text
        assert str(path) in text


async def test_every_way_to_the_same_file_is_the_same_file(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    monkeypatch.chdir(path.parent)
    for way in (path.name, f"./{link.name}", f"file:{path}?mode=rw"):
        caller = sqlite3.connect(way, uri=way.startswith("file:"))
        engine.create_within(caller, [a_job()])
        caller.commit()
        caller.close()
    assert await count(engine) == 3


async def test_another_name_of_the_same_file_is_refused(engine: SqliteEngine, path: Path) -> None:
    for link in (path.with_name("hard.db"), path.with_name("folder") / path.name):
        link.parent.mkdir(exist_ok=True)
        link.hardlink_to(path)
        caller = sqlite3.connect(link)
        text = refusal(engine, caller, TransactionRefused)
        assert f"{path} by another name, {link}" in text
        caller.close()


async def test_a_connection_to_another_file_is_refused(
    engine: SqliteEngine, path: Path, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "app.db")
    text = refusal(engine, other, TransactionRefused)
    assert str(tmp_path / "app.db") in text
    assert str(path) in text
    assert "cannot be committed together" in text
    other.close()


async def test_a_database_in_memory_is_refused(engine: SqliteEngine, path: Path) -> None:
    for name in (":memory:", ""):
        other = sqlite3.connect(name)
        text = refusal(engine, other, TransactionRefused)
        assert "a database in memory" in text
        assert str(path) in text
        other.close()


async def test_our_file_attached_to_another_is_refused_and_told_why(
    engine: SqliteEngine, path: Path, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "app.db")
    other.execute("attach ? as queue", (str(path),))
    text = refusal(engine, other, TransactionRefused)
    assert "attached as 'queue'" in text
    assert "one after the other, so a crash could keep your rows and lose the job" in text
    assert f"Connect to {path} itself" in text
    other.close()


async def test_another_file_attached_to_ours_is_the_caller_s_affair(
    engine: SqliteEngine, app: sqlite3.Connection, tmp_path: Path
) -> None:
    app.execute("attach ? as other", (str(tmp_path / "other.db"),))
    app.execute("create table other.trellis_job (id text)")
    engine.create_within(app, [a_job()])
    app.commit()
    assert await count(engine) == 1


async def test_a_temporary_table_that_hides_ours_is_refused(
    engine: SqliteEngine, app: sqlite3.Connection
) -> None:
    app.execute("create temp table trellis_job (id text)")
    assert "temporary table trellis_job" in refusal(engine, app, TransactionRefused)
    app.execute("drop table temp.trellis_job")
    engine.create_within(app, [a_job()])
    app.commit()
    assert await count(engine) == 1


def test_a_file_without_our_tables_is_told_how_to_get_them(path: Path) -> None:
    caller = sqlite3.connect(path)
    caller.execute("create table orders (name text)")
    text = refusal(SqliteEngine(path), caller, SchemaTooOld)
    assert f"{path} has schema version 0" in text
    assert f"trellis migrate --url sqlite:///{path}" in text
    assert not caller.in_transaction
    caller.execute("insert into orders values ('one')")
    refusal(SqliteEngine(path), caller, SchemaTooOld)
    caller.commit()
    assert orders(caller) == ["one"]
    caller.close()


def test_a_file_that_is_not_there_is_not_made(path: Path, tmp_path: Path) -> None:
    caller = sqlite3.connect(tmp_path / "app.db")
    text = refusal(SqliteEngine(path), caller, DatabaseMissing)
    assert f"trellis migrate --url sqlite:///{path}" in text
    assert not path.exists()
    caller.close()


def test_an_older_schema_is_refused(path: Path, next_version: Callable[[], int]) -> None:
    old = connection.connect(path, create=True)
    schema.migrate(old, path)
    before = schema.latest_version()
    after = next_version()
    old.execute("begin")
    text = refusal(SqliteEngine(path), old, SchemaTooOld)
    assert f"{path} has schema version {before}, this Trellis needs {after}" in text
    assert "trellis migrate" in text
    old.close()


async def test_a_newer_schema_and_a_lookalike_are_refused(
    engine: SqliteEngine, app: sqlite3.Connection, tmp_path: Path
) -> None:
    app.execute("update trellis_meta set value = 999 where name = 'schema'")
    assert "Upgrade trellis-jobs" in refusal(engine, app, SchemaTooNew)
    app.rollback()
    other = sqlite3.connect(tmp_path / "plants.db")
    other.execute("create table trellis_plants (name text)")
    text = refusal(SqliteEngine(tmp_path / "plants.db"), other, NotATrellisDatabase)
    assert "trellis_plants" in text
    other.close()


# -- the caller's settings -------------------------------------------------------------------------


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def busy_jobs() -> list[tuple[list[Any], Callable[[list[Any]], list[CreateResult]]]]:
    """Return batches that read as much as admission ever does, and what they must answer."""
    rule = KeyPolicy("user/{id}", 1, 1, "replace-oldest")
    keyed = [a_keyed_job("user/7", rule) for _ in range(2)]
    marked = [a_job(dedupe="d", idempotency_key="i"), a_job(dedupe="d")]
    return [
        ([a_job(), a_job()], lambda jobs: [Accepted(job.id) for job in jobs]),
        (keyed, lambda jobs: [Accepted(job.id) for job in jobs]),
        (
            marked,
            lambda jobs: [
                Accepted(jobs[0].id),
                Coalesced(jobs[0].id, Reason.SAME_DEDUPE_KEY),
            ],
        ),
    ]


@pytest.mark.parametrize("texts", [str, bytes, bytearray, lambda raw: raw.decode().upper()])
@pytest.mark.parametrize("rows", [None, sqlite3.Row, as_dict, lambda *_: 7])
async def test_the_caller_s_way_to_read_rows_and_texts_is_neither_used_nor_changed(
    engine: SqliteEngine,
    app: sqlite3.Connection,
    rows: Callable[..., object] | None,
    texts: type[str],
) -> None:
    app.row_factory, app.text_factory = rows, texts
    for jobs, answers in busy_jobs():
        assert engine.create_within(app, jobs) == answers(jobs)
    with pytest.raises(PayloadInvalid, match="lone surrogate"):
        engine.create_within(app, [a_job(payload='"\ud800"')])
    assert (app.row_factory, app.text_factory) == (rows, texts)
    app.commit()
    assert await count(engine) == 5


async def test_a_connection_that_converts_our_columns_is_refused(
    engine: SqliteEngine, app: sqlite3.Connection, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INTEGER", "TEXT"):
        with monkeypatch.context() as patch:
            patch.setitem(sqlite3.converters, name, lambda raw: [raw])
            caller = sqlite3.connect(path, detect_types=sqlite3.PARSE_DECLTYPES)
            assert "without detect_types" in refusal(engine, caller, TransactionRefused)
            caller.close()
    caller = sqlite3.connect(path, detect_types=sqlite3.PARSE_DECLTYPES)
    engine.create_within(caller, [a_job()])
    caller.commit()
    caller.close()


async def test_the_caller_s_triggers_and_foreign_keys_go_on_working(
    engine: SqliteEngine, app: sqlite3.Connection
) -> None:
    app.executescript(
        "pragma foreign_keys = on; pragma recursive_triggers = on;"
        "create table note (job text references trellis_job (id) deferrable initially deferred);"
        "create trigger noted after insert on trellis_job begin "
        "  insert into orders values (new.id); insert into note values (new.id); end;"
    )
    job = a_job(type="fresh")
    engine.create_within(app, [job])
    app.commit()
    assert orders(app) == [job.id]
    assert app.execute("pragma foreign_keys").fetchone() == (1,)


@pytest.mark.parametrize(
    ("refuse", "is_left"),
    [("select raise(abort, 'enough')", True), ("select raise(rollback, 'enough')", False)],
)
async def test_a_trigger_that_refuses_the_job_undoes_the_call_and_no_more_than_it_says(
    engine: SqliteEngine, app: sqlite3.Connection, refuse: str, is_left: bool
) -> None:
    app.execute(
        "create trigger full after insert on trellis_event "  # noqa: S608 - our own words
        f"when (select count(*) from trellis_job) > 2 begin {refuse}; end"
    )
    app.commit()
    app.execute("insert into orders values ('mine')")
    engine.create_within(app, [a_job()])
    with pytest.raises(EngineError, match="enough") as raised:
        engine.create_within(app, [a_job(dedupe="a"), a_job(dedupe="b")])
    assert ("rolled back your whole transaction" in str(raised.value)) is not is_left
    assert app.in_transaction is is_left
    app.commit()
    assert (await count(engine), orders(app)) == ((1, ["mine"]) if is_left else (0, []))


@pytest.mark.parametrize(("release", "pages"), [((3, 51, 2), 0), ((3, 51, 3), 1000)])
async def test_a_caller_never_checkpoints_together_with_us_where_that_is_dangerous(
    engine: SqliteEngine,
    app: sqlite3.Connection,
    release: tuple[int, ...],
    pages: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", release)
    engine.create_within(app, [a_job()])
    assert app.execute("pragma wal_autocheckpoint").fetchone() == (pages,)
    app.commit()


# -- locks, disks, threads -------------------------------------------------------------------------


async def test_a_file_locked_by_another_writer_is_a_typed_error(
    engine: SqliteEngine, app: sqlite3.Connection, path: Path
) -> None:
    caller = sqlite3.connect(path, timeout=0)
    app.execute("insert into orders values ('one')")
    text = refusal(engine, caller, EngineBusy)
    assert f"{path} is locked by another writer" in text
    assert "Nothing was stored; roll back and try again" in text
    assert not caller.in_transaction
    caller.execute("begin")
    refusal(engine, caller, EngineBusy)
    assert caller.in_transaction
    app.commit()
    engine.create_within(caller, [a_job()])
    caller.commit()
    caller.close()
    assert await count(engine) == 1


async def test_a_transaction_that_has_read_before_others_wrote_is_told_to_begin_again(
    engine: SqliteEngine, app: sqlite3.Connection
) -> None:
    app.isolation_level = None
    app.execute("begin")
    assert orders(app) == []
    await engine.create([a_job()])
    text = refusal(engine, app, EngineBusy)
    assert "has written" in text
    assert "since your transaction began to read" in text
    assert "BEGIN IMMEDIATE" in text
    assert app.in_transaction
    app.execute("rollback")
    app.execute("begin immediate")
    engine.create_within(app, [a_job()])
    app.execute("commit")
    assert await count(engine) == 2


async def test_a_transaction_that_has_written_already_keeps_its_lock(
    engine: SqliteEngine, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.engines.sqlite.writer.BUSY_SECONDS", 0.05)
    engine.create_within(app, [a_job()])
    with pytest.raises(EngineBusy):
        await engine.create([a_job()])
    engine.create_within(app, [a_job()])
    app.commit()
    assert await count(engine) == 2


async def test_a_full_disk_leaves_nothing_of_the_call(
    engine: SqliteEngine, app: sqlite3.Connection
) -> None:
    (pages,) = app.execute("pragma page_count").fetchone()
    app.execute(f"pragma max_page_count = {pages + 2}").fetchone()
    big = [a_job(payload='"' + "x" * 50_000 + '"') for _ in range(10)]
    app.execute("insert into orders values ('mine')")
    with pytest.raises(DiskFull, match="free some space"):
        engine.create_within(app, big)
    app.execute("pragma max_page_count = 1000000").fetchone()
    app.commit()
    assert await count(engine) == 0
    engine.create_within(app, big)
    app.commit()
    assert await count(engine) == 10


async def test_a_connection_that_may_only_read_is_refused(
    engine: SqliteEngine, app: sqlite3.Connection, path: Path
) -> None:
    caller = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    refusal(engine, caller, ReadOnlyDatabase)
    caller.close()
    app.execute("pragma query_only = on")
    refusal(engine, app, ReadOnlyDatabase)
    assert not app.in_transaction


async def test_a_connection_that_is_closed_or_of_another_thread_is_refused(
    engine: SqliteEngine, path: Path
) -> None:
    caller = sqlite3.connect(path)
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(refusal, engine, caller, TransactionRefused).result()
    assert "created in a thread" in said
    caller.close()
    assert "closed database" in refusal(engine, caller, TransactionRefused)


async def test_callers_and_the_engine_may_create_at_once(engine: SqliteEngine, path: Path) -> None:
    begin = threading.Barrier(3)

    def visit(place: int) -> None:
        caller = sqlite3.connect(path, timeout=60)
        begin.wait()
        for number in range(20):
            engine.create_within(caller, [a_job(type=f"t{place}-{number % 5}"), a_job()])
            caller.rollback() if number % 4 == 3 else caller.commit()
        caller.close()

    async def create() -> None:
        for number in range(20):
            await engine.create([a_job(type=f"t{number % 7}"), a_job(dedupe=f"d{number}")])

    await asyncio.gather(create(), *(asyncio.to_thread(visit, place) for place in range(3)))
    assert await count(engine) == 3 * 15 * 2 + 40
    page = await engine.find(JobFilter(), limit=1000)
    rows = [record.definition.row for record in page.jobs]
    assert rows == list(range(len(rows), 0, -1))
    assert all([await engine.journal(record.definition.id) for record in page.jobs])


WORKER = """
import asyncio, sys
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.builders import a_demand, a_worker

async def main():
    engine = SqliteEngine(sys.argv[1])
    await engine.open()
    session = (await engine.open_session(a_worker(), 60_000_000)).id
    hints = engine.watch(("ready",))
    hint = asyncio.ensure_future(anext(hints))
    print("waiting", flush=True)
    while not (taken := (await engine.claim(session, [a_demand()], 1)).jobs):
        await hint
        hint = asyncio.ensure_future(anext(hints))
    print(taken[0].definition.id, flush=True)
    hint.cancel()
    await asyncio.wait({hint})
    await engine.close()

asyncio.run(main())
"""


async def test_a_worker_in_another_process_finds_the_job_after_the_commit(
    engine: SqliteEngine, app: sqlite3.Connection, path: Path
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(path), stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"waiting\n"
    job = a_job()
    engine.create_within(app, [job])
    found = asyncio.ensure_future(child.stdout.readline())
    assert not found.done()
    app.commit()
    while not found.done():  # it may not have looked at the file before the first commit
        await asyncio.wait({found}, timeout=0.5)
        app.execute("insert into orders values ('another commit')")
        app.commit()
    assert found.result().decode().strip() == job.id
    assert await child.wait() == 0
