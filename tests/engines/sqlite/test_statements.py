"""Every statement of the SQLite engine is valid, used, and scans no table it need not."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

import trellis.engines.sqlite
from tests.cli.shop import make_shop
from tests.engines.sections import EVERYTHING, SHARED, unused_fragments
from trellis import Service, connect
from trellis.core.durations import to_instant
from trellis.engines.sql.statements import load_statements
from trellis.engines.sqlite import connection, export, reader, schema
from trellis.engines.sqlite.transaction import FRAGMENTS, STATEMENTS, _widen
from trellis.engines.values import Group, TagGroup

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
    groups, tag = reader.FILTERS.groups((*get_args(Group), TagGroup("tenant")))
    count = FRAGMENTS["count"].format(
        where=condition, groups=groups, places="2, 3, 4, 5, 6, 7, 8, 9"
    )
    assert file.execute(_page(condition, len(values)), (*values, None, 1)).fetchall() == []
    assert file.execute(count, (*tag, *values)).fetchall() == []
    for table in export._TABLES:
        for change in export._CHANGES:
            file.execute(export._trigger(table, change, "elsewhere"))
    assert connection.read_setting(file, "journal_mode") == "wal"


async def test_the_view_for_people_agrees_with_the_views_of_programs(tmp_path: Path) -> None:
    ids = await asyncio.to_thread(make_shop, tmp_path)
    async with connect(f"sqlite:///{tmp_path / 'jobs.db'}") as jobs:
        views = [view async for view in jobs.find()]
    names = "id, state, started_at, updated_at, worker, result, finished_at"
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as file:
        rows = file.execute(f"select {names} from trellis_jobs order by seq desc").fetchall()  # noqa: S608
    assert len(rows) == len(ids)
    assert rows == [
        (
            view.id,
            view.state,
            view.started_at and to_instant(view.started_at),
            to_instant(view.updated_at),
            view.worker,
            '{"paid":true,"token":"t0p"}' if view.result else None,
            view.finished_at and to_instant(view.finished_at),
        )
        for view in views
    ]


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
        if f'"{name}"' not in code and not name.startswith(("prune_", "projection_erase_"))
    ]
    assert unused == []


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in sorted(STATEMENTS)
        # These read small tables whole, by design.
        if name
        not in {
            "archive_list",
            "archive_off",
            "archive_on",
            "backlog_pick",
            "claim_settings",
            "drain_list",
            "due_sessions",
            "lane_list",
            "past_session_prune",
            "projection_forget_sessions",
            "projection_other_stream",
            "projection_own_jobs",
            "projection_presences",
            "queue_settings",
            "read_ahead",
            "read_keys",
            "schedule_list",
            "session_list",
            "token_list",
            "token_prune_logins",
            "token_prune_logins_peek",
            "type_list",
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


async def test_the_view_for_people_has_the_parent_and_the_batch_of_a_job(tmp_path: Path) -> None:
    async with Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}") as shop:

        @shop.job
        async def part() -> None: ...

        @shop.job
        async def plan() -> list[str]:
            async with shop.batch() as batch:
                return [batch.id, (await batch.create(part)).id]

        ref = await plan.create()
        async with shop.worker():
            batch, member = await ref.wait("20s")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as file:
        rows = file.execute("select id, parent, batch from trellis_jobs order by seq").fetchall()
    assert rows == [(ref.id, None, None), (member, ref.id, batch)]


def test_every_statement_that_is_run_for_many_rows_has_values_to_repeat() -> None:
    folders = (SHARED, Path(trellis.engines.sqlite.__file__).parent)
    sources = [path.read_text() for folder in folders for path in folder.glob("*.py")]
    names = {name for text in sources for name in re.findall(r'run_many\(\s*"(\w+)"', text)}
    assert "projection_session" in names
    for name in names & STATEMENTS.keys():
        assert _widen(name, 2) != STATEMENTS[name], name
