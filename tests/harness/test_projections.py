"""The comparison of two projections finds every row that differs, and nothing else."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.projections import IGNORED, differences, places_in
from trellis.core.commands import Complete
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.builders import a_job, a_job_id, fence_of
from trellis.testing.conformance.helpers import a_session, accept_one, settle, start


@pytest.fixture
async def both(tmp_path: Path) -> tuple[Path, Path]:
    """Two files with the same tables: a job that has ended and one that waits."""
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    engine = SqliteEngine(first)
    await engine.open()
    session = await a_session(engine)
    done = await start(engine, session, a_job(type="done", idempotency_key=a_job_id()))
    await settle(engine, done, Complete(fence_of(done), '{"n": 1}'))
    await accept_one(engine, a_job(type="waiting"))
    await engine.close()
    shutil.copy(first, second)
    return first, second


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(statement)


def test_a_copy_does_not_differ(both: tuple[Path, Path]) -> None:
    assert differences(*both) == []


@pytest.mark.parametrize(
    ("statement", "table", "first", "second"),
    [
        ("delete from trellis_event where kind = 'completed'", "trellis_event", "completed",
         "nothing"),
        ("update trellis_event set at = 7 where kind = 'started'", "trellis_event", "{'at': 1",
         "{'at': 7}"),
        ("update trellis_outcome set result = '{}'", "trellis_outcome", "1}", "{}"),
        ("update trellis_outcome set keep_until = 7", "trellis_outcome", "keep_until", "7}"),
        ("update trellis_job set payload = '2'", "trellis_job", "payload", "'2'"),
        ("insert into trellis_removal values ('x', 'dead', 1)", "trellis_removal", "nothing",
         "dead"),
        ("update trellis_policy set body = body || ' '", "trellis_job", "policy", "policy"),
        ("update trellis_lane set queue = 'other'", "trellis_queue", "lane", "other"),
    ],
)  # fmt: skip
def test_a_row_that_differs_is_named_with_both_values(
    both: tuple[Path, Path], statement: str, table: str, first: str, second: str
) -> None:
    change(both[1], statement)
    found = [each for each in differences(*both) if each.table == table]
    assert any(first in each.first and second in each.second for each in found), found


def test_the_events_of_a_job_in_another_order_differ(both: tuple[Path, Path]) -> None:
    change(both[1], "update trellis_event set seq = seq + 100 where kind = 'started'")
    found = differences(*both)
    assert {each.table for each in found} == {"trellis_event"}
    assert len(found) == 2


def test_numbers_that_only_count_insertions_do_not_differ(both: tuple[Path, Path]) -> None:
    change(both[1], "update trellis_session set number = number + 100")
    change(both[1], "update trellis_job set lane = lane + 100")
    change(both[1], "update trellis_queue set lane = lane + 100")
    change(both[1], "update trellis_lane set id = id + 100")
    assert differences(*both) == []


def test_how_long_a_batch_keeps_a_member_does_not_differ(both: tuple[Path, Path]) -> None:
    member = (
        "insert into trellis_batch_member (batch, job, linked) select 1, seq, 0 from trellis_job"
    )
    for path in both:
        change(path, member)
    change(both[1], "update trellis_outcome set keep_until = 7")
    assert differences(*both) == []


def test_everything_that_is_ignored_has_a_reason() -> None:
    assert all(len(reason.split()) > 3 for reason in IGNORED.values())


def test_a_file_that_is_no_projection_has_no_places(both: tuple[Path, Path]) -> None:
    assert places_in(both[0]) == {}
