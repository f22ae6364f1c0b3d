"""Every statement of the SQLite engine is valid, used, and scans no table it need not."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import trellis.engines.sqlite
from tests.engines.sections import EVERYTHING, SHARED, unused_fragments
from trellis.engines.sql.statements import load_statements
from trellis.engines.sqlite import connection, export, reader, schema
from trellis.engines.sqlite.transaction import FRAGMENTS, STATEMENTS, _widen
from trellis.engines.values import GroupBy

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


def _explain(file: sqlite3.Connection, how: str, text: str) -> list[tuple[object, ...]]:
    numbers = [int(number) for number in re.findall(r"\?(\d+)", text)]
    values = (None,) * max([*numbers, len(re.findall(r"\?(?!\d)", text))])
    return file.execute(f"{how} {text}", values).fetchall()


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_every_statement_can_be_prepared(name: str, file: sqlite3.Connection) -> None:
    if "trellis_moved" in STATEMENTS[name] and name != "export_seal_table":
        file.execute(STATEMENTS["export_seal_table"])
    for size in (1, 10):
        _explain(file, "explain", _widen(name, size))


def test_what_is_put_together_from_fragments_can_be_prepared(file: sqlite3.Connection) -> None:
    reader.Reader(file)  # brings the function that looks through errors
    condition, values = reader.FILTERS.where(EVERYTHING)
    groups = reader.FILTERS.groups(get_args(GroupBy))
    for text, tail in (
        (_page(condition, len(values)), (None, 1)),
        (FRAGMENTS["count"].format(where=condition, groups=groups), ()),
    ):
        assert file.execute(text, (*values, *tail)).fetchall() == []
    for table in export._TABLES:
        for change in export._CHANGES:
            file.execute(export._trigger(table, change, "elsewhere"))
    assert connection.read_setting(file, "journal_mode") == "wal"


def _page(condition: str, number: int) -> str:
    return FRAGMENTS["find"].format(where=condition, after=number + 1, limit=number + 2)


def test_every_fragment_is_used() -> None:
    folder = Path(trellis.engines.sqlite.__file__).parent
    code = "".join(path.read_text() for path in (*folder.glob("*.py"), *SHARED.glob("*.py")))
    assert unused_fragments(folder, code) == []


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_knows_the_lifecycle(name: str) -> None:
    assert not _STATE_WORDS.search(STATEMENTS[name])


def test_every_statement_is_used() -> None:
    folder = Path(trellis.engines.sqlite.__file__).parent
    code = "".join(path.read_text() for path in (*folder.glob("*.py"), *SHARED.glob("*.py")))
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
        if name
        not in {
            "due_sessions",
            "lane_list",
            "queue_settings",
            "read_keys",
            "session_list",
        }
        and "trellis_moved" not in STATEMENTS[name]  # one row
    ],
)
def test_no_statement_scans_a_table_of_jobs(name: str, file: sqlite3.Connection) -> None:
    plan = _explain(file, "explain query plan", STATEMENTS[name])
    scans = [
        detail
        for detail in (str(row[-1]) for row in plan)
        if detail.startswith("SCAN")
        and re.search(r"SCAN (trellis_\w+|[a-z])\b", detail)
        and "INDEX" not in detail
        and "CONSTANT" not in detail
        and not re.fullmatch(r"SCAN (b|g|s|picked|used|k)( VIRTUAL TABLE.*)?", detail)
    ]
    assert scans == [], plan
