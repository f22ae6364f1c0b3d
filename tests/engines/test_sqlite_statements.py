"""Every statement of the SQLite engine is valid, used, and scans no table it need not."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import trellis.engines.sqlite
from trellis.engines.sql.statements import load_statements
from trellis.engines.sqlite import connection, schema
from trellis.engines.sqlite.transaction import STATEMENTS, _widen

#: State words may stand in the claim and in migrations only: the lifecycle lives in the core.
_STATE_WORDS = re.compile(
    r"'(pending|retry|completed|failed|cancelled|expired|skipped|stale|dead|dismissed)'"
)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "plans.db"
    opened = connection.connect(path, create=True)
    schema.migrate(opened, path)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_every_statement_can_be_prepared(name: str, file: sqlite3.Connection) -> None:
    for size in (1, 10):
        text = _widen(name, size)
        file.execute(f"explain {text}", (None,) * text.count("?")).fetchall()


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_knows_the_lifecycle(name: str) -> None:
    assert not _STATE_WORDS.search(STATEMENTS[name])


def test_every_statement_is_used() -> None:
    folder = Path(trellis.engines.sqlite.__file__).parent
    code = "\n".join(path.read_text() for path in folder.glob("*.py"))
    unused = [
        name
        for name in load_statements("trellis.engines.sqlite")
        if f'"{name}"' not in code and not name.startswith("prune_")
    ]
    assert unused == []


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in sorted(STATEMENTS)
        # These list small tables whole, by design.
        if name not in {"session_list", "due_sessions", "queue_settings", "lane_list", "read_keys"}
    ],
)
def test_no_statement_scans_a_table_of_jobs(name: str, file: sqlite3.Connection) -> None:
    text = STATEMENTS[name]
    plan = file.execute(f"explain query plan {text}", (None,) * text.count("?")).fetchall()
    scans = [
        detail
        for *_, detail in plan
        if detail.startswith("SCAN")
        and re.search(r"SCAN (trellis_\w+|[a-z])\b", detail)
        and "INDEX" not in detail
        and "CONSTANT" not in detail
        and not re.fullmatch(r"SCAN (b|s|picked|used|k)( VIRTUAL TABLE.*)?", detail)
    ]
    assert scans == [], plan
