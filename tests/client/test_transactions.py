"""Jobs created in the caller's own transaction: stored by its commit, gone with its rollback."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm

from trellis import Accepted, Job, JobNotFound, JobRef, Service, State
from trellis.core.job import NewJob
from trellis.engines.memory import MemoryEngine
from trellis.errors import TransactionOpen, TransactionRefused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def shop(path: Path) -> Service:
    return Service("shop", f"sqlite:///{path}")


@pytest.fixture
def orders(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table orders (number integer)")
        connection.commit()
        yield connection


def shipping(service: Service) -> Job[int, str]:
    @service.job
    async def ship(number: int) -> str:
        return f"shipped {number}"

    return ship


async def test_a_job_is_committed_together_with_the_callers_rows(
    shop: Service, orders: sqlite3.Connection
) -> None:
    ship = shipping(shop)
    async with shop:
        orders.execute("insert into orders values (7)")
        ref = await ship.create(7, tx=orders)
        with pytest.raises(TransactionOpen, match="Commit first, then wait"):
            await ref.wait("10s")
        with pytest.raises(TransactionOpen):
            await ref.status()
        orders.commit()
        assert (await ref.status()).state is State.PENDING
        async with shop.worker(poll="20ms"):
            assert await ref.wait("20s") == "shipped 7"
    assert orders.execute("select * from orders").fetchall() == [(7,)]


async def test_a_rolled_back_job_was_never_there(shop: Service, orders: sqlite3.Connection) -> None:
    async with shop:
        ref = await shipping(shop).create(7, tx=orders)
        orders.rollback()
        for ask in (ref.wait("10s"), ref.status()):
            with pytest.raises(JobNotFound, match="created in was rolled back"):
                await ask


def test_the_twins_join_a_transaction_in_the_callers_own_thread(
    shop: Service, orders: sqlite3.Connection
) -> None:
    ship = shipping(shop)
    with shop:
        orders.execute("insert into orders values (7)")
        ref = ship.create_sync(7, tx=orders)
        answer = ship.submit_sync(8, tx=orders)
        assert isinstance(answer, Accepted)
        refs = [ref, answer.ref, *ship.create_many_sync(range(1200), tx=orders)]
        with pytest.raises(TransactionOpen):
            ref.wait_sync("10s")
        orders.commit()
        assert {each.status_sync().state for each in refs[:2] + refs[-2:]} == {State.PENDING}
        gone = ship.create_sync(9, tx=orders)
        orders.rollback()
        with pytest.raises(JobNotFound):
            gone.status_sync()


def test_the_tables_are_made_when_a_transaction_has_yet_to_begin(
    shop: Service, orders: sqlite3.Connection
) -> None:
    ref = shipping(shop).create_sync(7, tx=orders)
    orders.commit()
    assert ref.status_sync().state is State.PENDING


async def test_the_task_of_a_transaction_is_refused_what_would_wait_for_itself(
    shop: Service, orders: sqlite3.Connection
) -> None:
    ship = shipping(shop)
    async with shop:
        other = await ship.create(1)
        await ship.create(7, tx=orders)
        for stuck in (
            ship.create(2),
            ship.create_many([2]),
            other.wait("10s"),
            other.cancel(),
            other.clone(),
        ):
            with pytest.raises(TransactionOpen, match="Commit or roll back first, or create this"):
                await stuck
        orders.commit()
        await ship.create(2)
        await other.cancel()


def test_waiting_without_a_loop_is_refused_as_well(
    shop: Service, orders: sqlite3.Connection
) -> None:
    ship = shipping(shop)
    with shop:
        other = ship.create_sync(1)
        ship.create_sync(7, tx=orders)
        with pytest.raises(TransactionOpen):
            ship.create_sync(2)
        with pytest.raises(TransactionOpen):
            other.wait_sync("10s")
        orders.commit()
        ship.create_sync(2)


async def test_others_may_well_wait_for_a_transaction_to_end(
    shop: Service, orders: sqlite3.Connection
) -> None:
    ship = shipping(shop)
    began = asyncio.Event()

    async def transact() -> JobRef[str]:
        ref = await ship.create(7, tx=orders)
        child = asyncio.create_task(ship.create(8))
        began.set()
        await asyncio.sleep(0)  # the others are on their way
        orders.commit()
        await child
        return ref

    async def beside() -> JobRef[str]:
        await began.wait()
        return await ship.create(9)

    async with shop:
        refs = await asyncio.gather(transact(), beside())
        assert [(await ref.status()).state for ref in refs] == [State.PENDING] * 2


def test_a_thread_beside_is_not_refused(shop: Service, orders: sqlite3.Connection) -> None:
    ship = shipping(shop)
    made: list[JobRef[str]] = []
    with shop:
        ship.create_sync(7, tx=orders)
        thread = threading.Thread(target=lambda: made.append(ship.create_sync(8)))
        thread.start()
        orders.commit()
        thread.join()
        assert made[0].status_sync().state is State.PENDING


async def test_a_connection_that_commits_nothing_of_ours_is_refused(
    shop: Service, orders: sqlite3.Connection, tmp_path: Path
) -> None:
    ship = shipping(shop)
    with (
        closing(sqlite3.connect(tmp_path / "other.db")) as other,
        pytest.raises(TransactionRefused, match="cannot be committed together"),
    ):
        await ship.create(7, tx=other)
    with pytest.raises(TransactionRefused, match=r"not a sqlite3\.Connection"):
        await ship.create(7, tx="orders")
    await shop.connection.close()


def test_a_connection_of_another_thread_is_refused(
    shop: Service, orders: sqlite3.Connection
) -> None:
    ship = shipping(shop)
    refused: list[Exception] = []

    def elsewhere() -> None:
        try:
            ship.create_sync(7, tx=orders)
        except TransactionRefused as error:
            refused.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "thread" in str(refused[0])


async def test_jobs_in_memory_take_any_connection_and_are_there_at_once() -> None:
    async with Service("shop", "memory://") as shop:
        with closing(sqlite3.connect(":memory:")) as anything:
            ref = await shipping(shop).create(7, tx=anything)
            assert (await ref.status()).state is State.PENDING


class OnALoop(MemoryEngine):
    """Joins transactions as an engine with an asynchronous driver does."""

    async def create_within(self, connection: object, jobs: Sequence[NewJob]) -> Any:  # noqa: ANN401
        return super().create_within(connection, jobs)


async def test_an_asynchronous_driver_is_awaited() -> None:
    shop = Service("shop", "memory://")
    shop.connection._own._shared_engine = OnALoop()
    ref = await shipping(shop).create(7, tx=object())
    assert (await ref.status()).state is State.PENDING


def test_an_asynchronous_driver_is_refused_without_a_loop() -> None:
    shop = Service("shop", "memory://")
    shop.connection._own._shared_engine = OnALoop()
    with pytest.raises(TransactionRefused, match="belongs to an event loop"):
        shipping(shop).create_sync(7, tx=object())


@pytest.mark.parametrize("is_sync", [True, False])
async def test_a_session_of_sqlalchemy_is_joined_and_asked_whether_it_is_open(
    shop: Service, path: Path, is_sync: bool
) -> None:
    ship = shipping(shop)

    def create(tx: object = None) -> JobRef[str]:
        return ship.create_sync(7, tx=tx)

    async def created(tx: object = None) -> JobRef[str]:
        return await (asyncio.to_thread(create, tx) if is_sync else ship.create(7, tx=tx))

    store = sqlalchemy.create_engine(f"sqlite:///{path}")
    async with shop:
        await ship.create(1)
        with orm.Session(store) as session:
            ref = await created(session)
            with pytest.raises(TransactionOpen, match="Commit first, then wait"):
                await ref.wait("10s")
            session.commit()
            assert (await ref.status()).state is State.PENDING
            gone = await created(session)
            session.rollback()
            session.execute(sqlalchemy.text("select 1"))  # a new transaction that writes nothing
            await created()
            with pytest.raises(JobNotFound, match="created in was rolled back"):
                await gone.status()
    store.dispose()
