"""A process that stands still in the middle of a transaction does not hold up everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.engines.postgres.steps import PATIENCE, fresh, until_it_works
from tests.harness.servers.databases import Databases
from tests.harness.servers.proxy import Proxy
from trellis.engines.postgres.connection import FILES, PINNED, PLAIN, ServerConnection
from trellis.engines.postgres.statements import names_in, statements
from trellis.engines.postgres.url import read_address
from trellis.errors import EngineError, EngineUnavailable, OutcomeUnknown

_LIMIT = "select current_setting('idle_in_transaction_session_timeout')"
_TOUCH = "update trellis.meta set value = value"
_SCRIBBLE = """
    update trellis.meta set value = 'scribble';
    set local idle_in_transaction_session_timeout = 1;
"""


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.mark.parametrize("settings", [PINNED, PLAIN])
@pytest.mark.parametrize("options", ["", "&pooler=session", "&pooler=transaction"])
async def test_the_server_ends_a_transaction_in_which_nothing_happens_for_five_seconds(
    url: str, settings: dict[str, str], options: str
) -> None:
    link = ServerConnection(read_address(f"{url}{options}"), settings)
    try:
        assert [tuple(row) for row in await link.query(_LIMIT)] == [("5s",)]
    finally:
        await link.close()


async def test_who_goes_on_after_that_hears_that_nothing_was_stored_and_can_work_again(
    url: str,
) -> None:
    stopped, other = (ServerConnection(read_address(url), PINNED) for _ in range(2))
    try:
        with pytest.raises(EngineUnavailable, match="Nothing of this call was stored"):
            await _stand_still(stopped, other)
        rows = await until_it_works(lambda: stopped.query("select value from trellis.meta"))
        assert "scribble" not in {row[0] for row in rows}
    finally:
        await stopped.close()
        await other.close()


async def _stand_still(link: ServerConnection, other: ServerConnection) -> None:
    """Do nothing in a transaction until the server has enough of it; then go on."""
    async with link.transaction() as connection:
        pid = connection.driver.get_server_pid()
        await connection.driver.execute(_SCRIBBLE)
        while await other.query("select from pg_stat_activity where pid = $1", pid):
            pass
        await connection.driver.execute("select 1")


async def test_a_process_stopped_at_its_first_statement_of_a_kind_frees_its_locks_as_well(
    url: str,
) -> None:
    other = ServerConnection(read_address(url), PINNED)
    frozen = asyncio.Event()
    with Proxy(url) as proxy:
        hasty = PINNED | {"idle_in_transaction_session_timeout": "200"}
        stopped = ServerConnection(read_address(proxy.url), hasty)

        async def stop_under_locks() -> None:
            async with stopped.transaction("locks") as connection:
                await connection.driver.execute(_TOUCH)
                proxy.freeze(requests=False)
                frozen.set()
                await connection.rows("lock_holder", "x", 0)

        stopping = asyncio.create_task(stop_under_locks())
        await frozen.wait()
        async with asyncio.timeout(PATIENCE):
            await other.query(_TOUCH)
        proxy.thaw()
        with pytest.raises((EngineUnavailable, OutcomeUnknown)):
            await stopping
        await stopped.close()
    await other.close()


async def test_what_a_verb_runs_is_prepared_before_its_transaction(url: str) -> None:
    link = ServerConnection(read_address(url), PINNED)
    for verb, files in FILES.items():
        async with link.transaction(verb) as connection:
            found = await connection.driver.fetch("select statement from pg_prepared_statements")
            prepared = {row[0] for row in found}
            assert {statements("trellis")[name] for name in names_in(files)} <= prepared
    await link.close()


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_statement_is_prepared_again_after_a_migration_changed_its_columns(
    url: str, in_transaction: bool
) -> None:
    link, other = (ServerConnection(read_address(url), PINNED) for _ in range(2))
    try:
        version = await link.value("schema_version")
        await other.script("alter table trellis.meta alter column value type varchar(999)")
        if in_transaction:
            with pytest.raises(EngineError):  # this one is undone; the next one works
                await _in_transaction(link, "schema_version")
            assert await _in_transaction(link, "schema_version") == version
        assert await link.value("schema_version") == version
    finally:
        await link.close()
        await other.close()


async def _in_transaction(link: ServerConnection, name: str) -> object:
    async with link.transaction() as connection:
        return await connection.value(name)
