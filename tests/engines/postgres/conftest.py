"""Databases with our tables in them, one for each test, and an ear for what the driver does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from trellis.engines.postgres import claim_planner
from trellis.engines.postgres.statements import statements

#: They run before their transaction has locked anything.
_FIRST = {
    "backend_pid", "clock", "due_jobs", "due_lost", "due_sessions", "health_settings",
    "remove_look", "schema_table", "schema_version",
}  # fmt: skip


@pytest.fixture
def nothing_prepared_late(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See that verbs name the files of what they run, by listening to the driver."""
    names = {text: name for name, text in statements("trellis").items()}
    late: set[str] = set()
    prepare = asyncpg.Connection.prepare

    async def listen(connection: Any, query: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        if connection.is_in_transaction() and query in names:
            late.add(names[query])
        return await prepare(connection, query, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "prepare", listen)
    yield
    assert late <= _FIRST, "in a file to be named in connection.FILES"


@pytest.fixture
def claims_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never take a claim for slow, which on a busy machine would leave out older jobs for a while.

    `tests/harness/age` tests what a slow claim leads to.
    """
    monkeypatch.setattr(claim_planner, "SLOW_FROM", float("inf"))
