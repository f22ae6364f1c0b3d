"""A process that stands still in the middle of a transaction does not hold up everybody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres.steps import fresh, until_it_works
from tests.servers.databases import Databases
from trellis.engines.postgres.address import read_address
from trellis.engines.postgres.link import PINNED, PLAIN, Link
from trellis.errors import EngineUnavailable

_LIMIT = "select current_setting('idle_in_transaction_session_timeout')"
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
    link = Link(read_address(f"{url}{options}"), settings)
    try:
        assert [tuple(row) for row in await link.query(_LIMIT)] == [("5s",)]
    finally:
        await link.close()


async def test_who_goes_on_after_that_hears_that_nothing_was_stored_and_can_work_again(
    url: str,
) -> None:
    stopped, other = (Link(read_address(url), PINNED) for _ in range(2))
    try:
        with pytest.raises(EngineUnavailable, match="Nothing of this call was stored"):
            await _stand_still(stopped, other)
        rows = await until_it_works(lambda: stopped.query("select value from trellis.meta"))
        assert "scribble" not in {row[0] for row in rows}
    finally:
        await stopped.close()
        await other.close()


async def _stand_still(link: Link, other: Link) -> None:
    """Do nothing in a transaction until the server has enough of it; then go on."""
    async with link.transaction() as connection:
        pid = connection.get_server_pid()
        await connection.execute(_SCRIBBLE)
        while await other.query("select from pg_stat_activity where pid = $1", pid):
            pass
        await connection.execute("select 1")
