"""A statement that waits for a lock: ended in time, with an error that names who holds the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.engines.postgres.steps import PATIENCE, fresh, opened, waits, with_options
from tests.harness.servers.databases import Databases
from trellis import Service
from trellis.control import apply_all
from trellis.core.commands import Adjust, Cancel, Command
from trellis.core.durations import SECOND
from trellis.core.states import State
from trellis.engines.postgres import PostgresEngine
from trellis.engines.postgres.blockers import Blocker, advice
from trellis.engines.postgres.connection import PINNED, PLAIN, ServerConnection
from trellis.engines.postgres.url import read_address
from trellis.engines.values import Accepted, JobFilter
from trellis.errors import EngineBlocked, OutcomeUnknown
from trellis.testing.builders import a_demand, a_job, a_worker

#: Waits for locks end after half of it.
SOON = "600ms"
LOCK = "lock table trellis.queue in access exclusive mode"


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@contextmanager
def locked(url: str, *statements: str) -> Iterator[int]:
    """Hold locks for a while; yield the server process that does."""
    with psycopg.connect(url, application_name="the report") as holder:
        for statement in statements or (LOCK,):
            holder.execute(statement.encode())
        yield holder.info.backend_pid
        holder.rollback()


def open_transactions(url: str) -> int:
    """Count the connections of Trellis."""
    with psycopg.connect(url) as sql:
        found = sql.execute(
            "select count(*) from pg_stat_activity"
            " where application_name = 'trellis' and datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


CALLS: dict[str, Callable[[PostgresEngine], Awaitable[Any]]] = {
    "find": lambda engine: engine.find(JobFilter()),
    "count": lambda engine: engine.count(JobFilter(), "state"),
    "health": lambda engine: engine.health(),
    "load": lambda engine: engine.load([a_job().id]),
    "create": lambda engine: engine.create([a_job()]),
    "create with a gate": lambda engine: engine.create([a_job(dedupe="once")]),
    "claim": lambda engine: engine.claim("0", [a_demand()], 1),  # type: ignore[arg-type]
    "promote": lambda engine: engine.promote(10),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_that_waits_for_a_lock_names_who_holds_it_and_works_afterwards(
    url: str, call: Callable[[PostgresEngine], Awaitable[Any]]
) -> None:
    async with opened(with_options(url, statement_timeout=SOON)) as engine:
        await engine.create([a_job()])
        with locked(url, "select 'secret'", LOCK) as pid, pytest.raises(EngineBlocked) as raised:
            await call(engine)
        text = str(raised.value)
        assert "Nothing of this call was stored." in text
        assert f"The lock is held by process {pid} (the report, user postgres, idle in" in text
        assert f"last statement: {LOCK})" in text
        assert f"select pg_terminate_backend({pid})" in text
        assert raised.value.pids == (pid,)
        new = a_job()
        assert await engine.create([new]) == [Accepted(new.id)]


async def test_the_values_in_the_statement_of_the_holder_are_not_shown(url: str) -> None:
    hold = "update trellis.meta set value = value where name <> 'secret' or value = 'secret'"
    link = ServerConnection(read_address(with_options(url, statement_timeout=SOON)), PLAIN)
    try:
        with locked(url, hold), pytest.raises(EngineBlocked) as raised:
            await link.script("update trellis.meta set value = value")
        assert "update trellis.meta set value = value where name <> ...)" in str(raised.value)
        assert "secret" not in str(raised.value)
    finally:
        await link.close()


async def test_who_waits_in_between_is_named_after_the_one_to_end(url: str) -> None:
    with (
        locked(url, "select count(*) from trellis.queue") as reader,
        psycopg.connect(url, application_name="the change") as between,
    ):
        pid = between.info.backend_pid
        changing = asyncio.create_task(asyncio.to_thread(between.execute, LOCK))
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(waits, url):
                pass
        async with opened(with_options(url, statement_timeout=SOON)) as engine:
            with pytest.raises(EngineBlocked) as raised:
                await engine.count(JobFilter(), "state")
        between.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            await changing
    assert raised.value.pids == (reader, pid)
    assert f"or end it: select pg_terminate_backend({reader})." in str(raised.value)
    assert "which waits for a lock itself" in str(raised.value)


def test_a_user_that_may_not_see_others_learns_the_process_at_least() -> None:
    seen = Blocker(4711, "the report", "ada", None, None, "<insufficient privilege>", waits=False)
    assert "process 4711 (the report, user ada" in advice([seen])


def test_a_prepared_transaction_is_named_without_a_process() -> None:
    text = advice([Blocker(0, "", "", None, None, "", waits=False)])
    assert text == (
        "The lock is held by a prepared transaction (see pg_prepared_xacts). Wait until that "
        "transaction ends, or finish it: COMMIT PREPARED or ROLLBACK PREPARED."
    )


@pytest.mark.parametrize("settings", [PINNED, PLAIN])
@pytest.mark.parametrize("options", ["", "&pooler=session", "&pooler=transaction"])
async def test_the_server_ends_a_wait_for_a_lock_after_three_seconds(
    url: str, settings: dict[str, str], options: str
) -> None:
    link = ServerConnection(read_address(f"{url}{options}"), settings)
    try:
        found = await link.query("select current_setting('lock_timeout')")
        assert [tuple(row) for row in found] == [("3s",)]
    finally:
        await link.close()


@pytest.mark.parametrize("pooler", ["session", "transaction"])
async def test_behind_a_pooler_the_holder_is_found_by_the_waiting_statement(
    url: str, pooler: str
) -> None:
    async with opened(with_options(url, statement_timeout=SOON, pooler=pooler)) as engine:
        with locked(url) as pid, pytest.raises(EngineBlocked) as raised:
            await engine.count(JobFilter(), "state")
    assert raised.value.pids == (pid,)


async def test_a_call_that_is_late_without_a_lock_leaves_no_second_connection(url: str) -> None:
    link = ServerConnection(read_address(with_options(url, statement_timeout="2s")), PLAIN)
    try:
        await link.query("select pg_sleep(1)")
        assert link._watch.found == ()
        async with asyncio.timeout(PATIENCE):
            while await asyncio.to_thread(open_transactions, url) > 1:
                await link.query("select 1")
    finally:
        await link.close()


async def test_the_doctor_names_who_blocks_a_statement_of_another_process(url: str) -> None:
    hold = "update trellis.meta set value = value"
    link = ServerConnection(read_address(url), PLAIN)
    async with opened(url) as engine:
        with locked(url, hold) as pid:
            waiting = asyncio.create_task(link.script(hold))
            async with asyncio.timeout(PATIENCE):
                warning = ""
                while "wait for a lock" not in warning:
                    warning = " ".join((await engine.health()).warnings)
        await waiting
    await link.close()
    assert f"held by process {pid} (the report, user postgres, idle in transaction" in warning


async def test_a_worker_goes_on_by_itself_when_the_lock_is_gone(url: str) -> None:
    service = Service("shop", with_options(url, statement_timeout=SOON))

    @service.job
    async def greet(name: str) -> str:
        return f"Hello {name}"

    async with service, service.worker(poll="50ms"):
        assert await (await greet.create("ada")).wait("30s") == "Hello ada"
        with locked(url), pytest.raises(EngineBlocked):
            await greet.create("grace")
        assert await (await greet.create("grace")).wait("30s") == "Hello grace"


async def test_a_session_is_renewed_after_a_wait_for_a_lock(url: str) -> None:
    async with opened(with_options(url, statement_timeout=SOON)) as engine:
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        lock = "lock table trellis.session in access exclusive mode"
        with locked(url, lock), pytest.raises(EngineBlocked):
            await engine.renew(session, ())
        assert (await engine.renew(session, ())).now > 0


async def test_a_call_that_was_stored_in_part_says_so(url: str) -> None:
    async with opened(with_options(url, statement_timeout=SOON)) as engine:
        first, second = a_job(), a_job()
        await engine.create([first, second])
        loaded = await engine.load([first.id, second.id])
        records = [record for record in loaded.records if record is not None]
        commands: list[Command] = [Cancel("enough"), Adjust(priority=3)]
        changes = list(zip(records, commands, strict=True))
        row = records[1].definition.row
        with locked(url, f"select from trellis.queue where job = {row} for update"):
            with pytest.raises(OutcomeUnknown, match="A part of this call was stored") as raised:
                await apply_all(engine, changes, loaded.now)
            assert isinstance(raised.value.__cause__, EngineBlocked)
        states = [each.head.state for each in (await engine.load([first.id])).records if each]
        assert states == [State.CANCELLED]


async def test_what_a_claim_has_taken_is_returned_when_its_next_round_fails(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = tuple(f"type{number}" for number in range(8))
    async with opened(url) as engine:
        await engine.create([a_job(type=each, queue=each) for each in types * 60])
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        rounds = 0
        rows = ServerConnection.rows

        async def lose_the_second(link: ServerConnection, name: str, *values: Any) -> Any:  # noqa: ANN401
            nonlocal rounds
            rounds += name == "claim"
            if name == "claim" and rounds == 2:
                raise EngineBlocked("A statement waited too long for a lock.")
            return await rows(link, name, *values)

        monkeypatch.setattr(ServerConnection, "rows", lose_the_second)
        claimed = await engine.claim(session, [a_demand(*types, limit=400)], 400)
        assert rounds == 2
        active = await engine.count(JobFilter(states=(State.ACTIVE,)))
        assert len(claimed.jobs) == active.total > 0
