"""Databases with our tables in them, one for each test, and an ear for what the driver does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from trellis.engines.postgres.statements import statements

#: They run before their transaction has locked anything.
_FIRST = {"clock", "due_jobs", "due_lost", "due_sessions", "remove_look"}


@pytest.fixture
def nothing_prepared_late(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See that verbs name what they run (`preparing.py`), by listening to the driver."""
    names = {text: name for name, text in statements("trellis").items()}
    late: set[str] = set()
    ask = asyncpg.Connection._get_statement  # type: ignore[attr-defined]

    async def listen(connection: Any, query: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        is_late = connection.is_in_transaction() and query in names
        cached = connection._stmt_cache.get((query, connection._protocol.get_record_class(), False))
        if is_late and cached is None and connection._stmt_cache_enabled:
            late.add(names[query])
        return await ask(connection, query, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "_get_statement", listen)
    yield
    assert late <= _FIRST, "to be named in preparing.AHEAD"
