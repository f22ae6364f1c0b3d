"""Pages of plain jobs on SQLite: many rows in few statements, and nothing half done."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from trellis.core.durations import SECOND
from trellis.core.events import EventKind
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Accepted, JobFilter
from trellis.errors import ConfigurationError
from trellis.testing.builders import a_job


async def test_an_id_that_is_known_late_in_a_page_undoes_no_other_job(
    engine: SqliteEngine, path: Path
) -> None:
    before = a_job()
    await engine.create([before])
    page = [*(a_job() for _ in range(230)), before, a_job()]
    assert await engine.create(page) == [Accepted(new.id) for new in page]
    records = (await engine.load([new.id for new in page])).records
    assert [record is not None for record in records] == [True] * len(page)
    for table in ("trellis_job", "trellis_queue", "trellis_event"):
        assert _rows(path, table) == len(page)


async def test_jobs_of_one_page_keep_their_order_whatever_they_ask_for(
    engine: SqliteEngine,
) -> None:
    page = [
        a_job(),
        a_job(tags=(("a", "b"),)),
        a_job(type="other"),
        a_job(delay=3600 * SECOND),
        a_job(priority=2),
        a_job(),
    ]
    await engine.create(page)
    loaded = (await engine.load([new.id for new in page])).records
    waits = [each.head.run_at - each.definition.created_at for each in loaded if each is not None]
    assert waits == [0, 0, 0, 3600 * SECOND, 0, 0]
    definitions = [record.definition for record in loaded if record is not None]
    assert [each.row for each in definitions] == sorted(each.row for each in definitions)
    assert [(each.type, each.tags, each.priority) for each in definitions] == [
        (new.type, new.tags, new.priority) for new in page
    ]
    for new in page:
        (event,) = await engine.journal(new.id)
        assert event.kind is EventKind.CREATED
    assert len((await engine.find(JobFilter())).jobs) == len(page)


async def test_what_a_failed_call_has_learnt_is_forgotten(engine: SqliteEngine) -> None:
    fresh = a_job(type="fresh")
    with pytest.raises(ConfigurationError, match="out of range"):
        await engine.create([fresh, a_job(priority=99)])
    await engine.create([a_job(type="other"), fresh])
    (record,) = (await engine.load([fresh.id])).records
    assert record is not None
    assert record.definition.type == "fresh"


def _rows(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    try:
        (count,) = connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608
    finally:
        connection.close()
    return int(count)
