"""Jobs created in the caller's own transaction: with every driver, on the caller's terms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm

from tests.engines.postgres.drivers import WAYS, Caller, Plain, join
from tests.engines.postgres.steps import fresh, opened, state_of
from tests.harness.servers.address import Address
from tests.harness.servers.databases import Databases
from trellis import Job, JobNotFound, Service, State
from trellis.core.admission import Reason
from trellis.core.durations import SECOND
from trellis.core.policy import KeyPolicy
from trellis.engines.postgres import PostgresEngine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Accepted, Coalesced, Rejected
from trellis.errors import (
    AccessDenied,
    EngineBusy,
    EngineError,
    NotATrellisDatabase,
    PayloadInvalid,
    TransactionOpen,
    TransactionRefused,
)
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker

# Drivers are what differs here; the conformance suite has callers on every version.
pytestmark = pytest.mark.on_postgres(18)
ONE_AT_A_TIME = KeyPolicy("{user}", active=1, queued=0, when_full="reject")
IN_TURN = KeyPolicy("{user}", active=1, queued=None, when_full="wait")

all_drivers = pytest.mark.parametrize("driver", WAYS)
some_drivers = pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "sqlalchemy", "django"])


@pytest.fixture(scope="module")
def url(postgres_server: Databases) -> Iterator[str]:
    """A database for the whole module, with a table of the application's."""
    url = fresh(postgres_server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table orders (name text unique)")
    yield url
    postgres_server.drop(url)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[PostgresEngine]:
    async with opened(url) as engine:
        yield engine


@asynccontextmanager
async def caller_on(driver: str, url: str, *, autocommit: bool = False) -> AsyncIterator[Caller]:
    async with WAYS[driver](url, autocommit) as caller:
        yield caller


def order(name: str) -> str:
    return f"insert into orders values ('{name}')"  # noqa: S608 - names of our own


async def has_order(engine: PostgresEngine, name: str) -> bool:
    return bool(await engine._reading.query("select 1 from orders where name = $1", name))


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[asyncio.Queue[str]]:
    """Hear what workers would hear."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    ear = await asyncpg.connect(url)
    await ear.add_listener("trellis_ready", lambda *said: heard.put_nowait(str(said[2])))
    try:
        yield heard
    finally:
        await ear.close()


# -- commit and rollback ---------------------------------------------------------------------------


@all_drivers
async def test_a_commit_stores_the_job_with_the_callers_row_and_wakes_workers(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    new = a_job()
    async with listening(url) as heard:
        async with caller_on(driver, url) as caller:
            await caller.execute(order(new.id))
            assert await join(engine, caller, new) == [Accepted(new.id)]
            assert await state_of(engine, new.id) is None
            assert heard.empty()
            await caller.commit()
        assert await asyncio.wait_for(heard.get(), 30) == "trellis_ready"
    assert await state_of(engine, new.id) == "pending"
    assert await has_order(engine, new.id)


@all_drivers
async def test_a_rollback_removes_the_job_and_the_callers_row(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    new = a_job()
    async with caller_on(driver, url) as caller:
        await caller.execute(order(new.id))
        assert await join(engine, caller, new) == [Accepted(new.id)]
        await caller.rollback()
    assert await state_of(engine, new.id) is None
    assert not await has_order(engine, new.id)


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sqlalchemy.Engine.connect, orm.Session])
def test_a_sqlite_connection_of_sqlalchemy_is_refused(
    url: str, make: Callable[[sqlalchemy.Engine], Any]
) -> None:
    store = sqlalchemy.create_engine("sqlite://")
    with make(store) as caller, pytest.raises(TransactionRefused, match="is to a sqlite database"):
        PostgresEngine(url).create_within(caller, [a_job()])
    store.dispose()


def test_a_sqlite_engine_refuses_a_postgresql_connection_of_sqlalchemy(
    url: str, tmp_path: Path
) -> None:
    store = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    engine = SqliteEngine(tmp_path / "jobs.db")
    with (
        store.connect() as caller,
        pytest.raises(TransactionRefused, match="is to a postgresql database"),
    ):
        engine.create_within(caller, [a_job()])
    store.dispose()


@all_drivers
async def test_a_connection_that_commits_by_itself_is_refused(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    new = a_job()
    async with caller_on(driver, url, autocommit=True) as caller:
        with pytest.raises(TransactionRefused, match="no open transaction"):
            await join(engine, caller, new)
        await caller.execute(order(new.id))  # it can still be used
    assert await state_of(engine, new.id) is None
    assert await has_order(engine, new.id)


@all_drivers
async def test_a_transaction_that_has_failed_is_refused(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    new = a_job()
    async with caller_on(driver, url) as caller:
        with pytest.raises(Exception, match="division by zero"):
            await caller.execute("select 1/0")
        with pytest.raises(TransactionRefused, match="has failed before"):
            await join(engine, caller, new)
        await caller.rollback()
    assert await state_of(engine, new.id) is None


def test_a_session_whose_flush_failed_is_refused(url: str) -> None:
    class Table(orm.DeclarativeBase):
        pass

    class Order(Table):
        __tablename__ = "orders"
        name: orm.Mapped[str] = orm.mapped_column(primary_key=True)

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(order("taken"))
    store = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with orm.Session(store) as session:
        session.add(Order(name="taken"))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()
        with pytest.raises(TransactionRefused, match="has failed before"):
            PostgresEngine(url).create_within(session, [a_job()])
        session.rollback()
    store.dispose()


@some_drivers
async def test_a_connection_to_another_database_is_refused_and_stays_usable(
    engine: PostgresEngine, url: str, postgres_server: Databases, driver: str
) -> None:
    for elsewhere in (postgres_server.url(), fresh(postgres_server)):
        async with caller_on(driver, elsewhere) as caller:
            with pytest.raises(TransactionRefused, match="is to another database") as raised:
                await join(engine, caller, a_job())
            assert "cannot be committed together" in str(raised.value)
            await caller.execute("select 1")
            await caller.rollback()
        if elsewhere != postgres_server.url():
            postgres_server.drop(elsewhere)


async def test_a_copy_of_the_database_is_another_database(
    url: str, postgres_server: Databases
) -> None:
    copied = fresh(postgres_server)
    copy = postgres_server.new_database(Address.of(copied).database)
    with psycopg.connect(copy) as connection, pytest.raises(TransactionRefused, match="another"):
        PostgresEngine(copied).create_within(connection, [a_job()])
    postgres_server.drop(copy)
    postgres_server.drop(copied)


async def test_a_database_without_our_tables_is_told_how_to_get_them(postgres_url: str) -> None:
    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(NotATrellisDatabase, match="trellis migrate"),
    ):
        PostgresEngine(postgres_url).create_within(connection, [a_job()])


@pytest.mark.parametrize("stranger", [None, "postgresql://", object()])
def test_what_is_no_connection_is_refused(url: str, stranger: object) -> None:
    with pytest.raises(TransactionRefused, match="is not a connection that Trellis supports"):
        PostgresEngine(url).create_within(stranger, [a_job()])


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_an_old_snapshot_cannot_decide_about_keys_but_may_create_other_jobs(
    engine: PostgresEngine, url: str, level: str
) -> None:
    kept = a_job()
    with psycopg.connect(url) as connection:
        connection.execute(f"set transaction isolation level {level}")
        for new in (a_job(dedupe="d"), a_job(idempotency_key="i"), a_keyed_job("u", ONE_AT_A_TIME)):
            with pytest.raises(TransactionRefused, match="READ COMMITTED"):
                engine.create_within(connection, [new])
        assert engine.create_within(connection, [kept]) == [Accepted(kept.id)]
    assert await state_of(engine, kept.id) == "pending"


# -- errors leave the transaction alone ------------------------------------------------------------


@all_drivers
async def test_a_contended_gate_is_an_error_at_once_and_the_transaction_goes_on(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    mark = f"contended-{driver}"
    first, second, third = a_job(dedupe=mark), a_job(dedupe=mark), a_job()
    async with caller_on("asyncpg", url) as before, caller_on(driver, url) as caller:
        await join(engine, before, first)
        await caller.execute(order(second.id))
        with pytest.raises(EngineBusy, match="your transaction is still usable"):
            await join(engine, caller, second)
        assert await join(engine, caller, third) == [Accepted(third.id)]
        await caller.commit()
        await before.commit()
    states = [await state_of(engine, each.id) for each in (first, second, third)]
    assert states == ["pending", None, "pending"]
    assert await has_order(engine, second.id)


@all_drivers
async def test_an_error_inside_leaves_nothing_of_the_call_and_the_transaction_usable(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    good, bad = a_job(), a_job(payload='"a\x00b"')
    async with caller_on(driver, url) as caller:
        await caller.execute(order(good.id))
        with pytest.raises((EngineError, PayloadInvalid)):
            await join(engine, caller, a_job(id=good.id), bad)
        assert await join(engine, caller, good) == [Accepted(good.id)]
        await caller.commit()
    assert await state_of(engine, good.id) == "pending"
    assert await has_order(engine, good.id)


async def test_a_savepoint_of_the_caller_can_undo_the_job_alone(
    engine: PostgresEngine, url: str
) -> None:
    kept, undone = a_job(), a_job()
    with psycopg.connect(url) as connection:
        for name in ("mine", "trellis_caller"):
            connection.execute(f"savepoint {name}")
            engine.create_within(connection, [undone])
            connection.execute(f"rollback to savepoint {name}")
        engine.create_within(connection, [kept])
    assert await state_of(engine, undone.id) is None
    assert await state_of(engine, kept.id) == "pending"


async def test_a_caller_who_may_not_write_our_tables_is_told_so(
    engine: PostgresEngine, url: str
) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("set local role pg_monitor")
        with pytest.raises(AccessDenied, match="docs/operations/postgresql"):
            engine.create_within(connection, [a_job()])
        connection.execute("select 1")


async def test_a_lost_connection_is_a_typed_error(engine: PostgresEngine, url: str) -> None:
    with psycopg.connect(url) as connection, psycopg.connect(url, autocommit=True) as other:
        connection.execute("select 1")
        pid = connection.info.backend_pid
        other.execute("select pg_terminate_backend(%s, 10000)", [pid])
        with pytest.raises(EngineError, match="could not be created"):
            engine.create_within(connection, [a_job()])


# -- the rules of create ---------------------------------------------------------------------------


@some_drivers
async def test_keyed_policies_dedupe_and_idempotency_hold(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    key = f"rules-{driver}"
    kept = a_job(dedupe=key), a_job(idempotency_key=key), a_keyed_job(key, ONE_AT_A_TIME)
    again = (
        a_job(dedupe=key),
        a_job(idempotency_key=key),
        a_job(idempotency_key=key, payload='"other"'),
        a_keyed_job(key, ONE_AT_A_TIME),
    )
    async with caller_on(driver, url) as caller:
        assert await join(engine, caller, *kept) == [Accepted(new.id) for new in kept]
        inside = await join(engine, caller, *again)
        await caller.commit()
    assert inside == [
        Coalesced(kept[0].id, Reason.SAME_DEDUPE_KEY),
        Coalesced(kept[1].id, Reason.SAME_IDEMPOTENCY_KEY),
        Rejected(Reason.IDEMPOTENCY_MISMATCH, kept[1].id),
        Rejected(Reason.KEY_BUSY, kept[2].id),
    ]
    assert (await engine.create(again))[:3] == inside[:3]


@some_drivers
async def test_a_keyed_job_gets_its_slot_after_the_commit(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    kind = f"keyed-{driver}"
    jobs = [a_keyed_job("ada", IN_TURN, type=kind) for _ in range(2)]
    async with caller_on(driver, url) as caller:
        await join(engine, caller, *jobs)
        assert (await engine.claim(session, [a_demand(kind)], 10)).jobs == ()
        await caller.commit()
    taken = (await engine.claim(session, [a_demand(kind)], 10)).jobs
    assert [record.definition.id for record in taken] == [jobs[0].id]
    await engine.close_session(session)


@some_drivers
async def test_others_do_not_wait_for_a_caller_with_a_new_type_or_key(
    engine: PostgresEngine, url: str, driver: str
) -> None:
    kind = f"new-{driver}"
    plain, keyed = a_job(type=kind), a_keyed_job("ada", IN_TURN, type=f"{kind}-keyed")
    async with caller_on(driver, url) as caller:
        await join(engine, caller, plain, keyed)
        async with asyncio.timeout(20):
            other = a_job(type=kind), a_keyed_job("ada", IN_TURN, type=f"{kind}-keyed")
            assert await engine.create(other) == [Accepted(new.id) for new in other]
        await caller.rollback()
    assert await state_of(engine, other[1].id) == "pending"


# -- through the public API ------------------------------------------------------------------------


def shipping(shop: Service, name: str) -> Job[int, str]:
    async def ship(number: int) -> str:
        return f"shipped {number}"

    return shop.job(name=name)(ship)


async def test_create_with_tx_is_run_by_a_worker_once_it_is_committed(url: str) -> None:
    async with Service("shop", url) as shop:
        ship = shipping(shop, "ship-async")
        async with shop.worker(poll="1h"), caller_on("asyncpg", url) as caller:
            ref = await ship.create(7, tx=caller.tx)
            with pytest.raises(TransactionOpen, match="Commit first, then wait"):
                await ref.wait("10s")
            other = await ship.create(8)  # nobody else is kept from writing
            assert await other.wait("30s") == "shipped 8"
            await caller.commit()
            assert await ref.wait("30s") == "shipped 7"


@all_drivers
async def test_a_reference_knows_whether_its_transaction_is_open_or_was_rolled_back(
    url: str, driver: str
) -> None:
    shop = Service("shop", url)
    ship = shipping(shop, "ship-open")

    def create(caller: Caller) -> Any:  # noqa: ANN401 - a reference, or a promise of one
        plain = isinstance(caller, Plain)
        return ship.create_sync(7, tx=caller.tx) if plain else ship.create(7, tx=caller.tx)

    async with shop, caller_on(driver, url) as caller:
        await caller.execute("select 1")
        ref = await caller.use(lambda: create(caller))
        for ask in (ref.wait("10s"), ref.status()):
            with pytest.raises(TransactionOpen, match="Commit first"):
                await ask
        await caller.rollback()
        with pytest.raises(JobNotFound, match="was rolled back"):
            await ref.status()


def test_create_sync_joins_in_the_callers_thread_and_others_may_be_created_meanwhile(
    url: str,
) -> None:
    with Service("shop", url) as shop, psycopg.connect(url) as connection:
        ship = shipping(shop, "ship-sync")
        refs = [ship.create_sync(7, tx=connection), *ship.create_many_sync([8, 9], tx=connection)]
        other = ship.create_sync(10)
        assert other.status_sync().state is State.PENDING
        with pytest.raises(TransactionOpen):
            refs[0].wait_sync("10s")
        connection.commit()
        assert {ref.status_sync().state for ref in refs} == {State.PENDING}


async def test_create_sync_refuses_a_connection_that_belongs_to_a_loop(url: str) -> None:
    def create(tx: object) -> None:
        with Service("shop", url) as shop:
            shipping(shop, "ship-refused").create_sync(7, tx=tx)

    async with caller_on("asyncpg", url) as caller:
        with pytest.raises(TransactionRefused, match="belongs to an event loop"):
            await asyncio.to_thread(create, caller.tx)
