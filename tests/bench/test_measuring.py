"""A rate comes from the journal or not at all; a program that fails takes the benchmark with it."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from bench import floor_sqlite, marks, sizes
from bench.app import make_orders
from bench.engine_sqlite import completed, new_jobs
from bench.journal import Journal
from bench.programs import running
from trellis.client import submission
from trellis.core.durations import SECOND
from trellis.core.job import JobRecord
from trellis.engines.demand import Demand
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import WorkerInfo
from trellis.testing.clock import ManualClock


async def leave_a_drain(path: Path, jobs: int, settled: int) -> None:
    """Claim jobs one by one, a second apart, and complete some of them a second after the last."""
    clock = ManualClock()
    engine = SqliteEngine(path, clock=clock)
    await engine.open()
    await engine.create(new_jobs(jobs))
    session = (await engine.open_session(WorkerInfo("w", "localhost", 1), 600 * SECOND)).id
    held: list[JobRecord] = []
    for _ in range(jobs):
        held += (await engine.claim(session, [Demand("bench", ("noop",), 1)], 1)).jobs
        clock.advance("1s")
    await engine.commit([completed(record, clock.now()) for record in held[:settled]])
    await engine.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


async def test_a_drain_lasts_from_the_first_claim_to_the_last_settlement(path: Path) -> None:
    await leave_a_drain(path, jobs=4, settled=4)
    with closing(Journal(path)) as journal:
        assert journal.is_drained()
        assert journal.drain_rate(4) == 1.0


async def test_a_drain_that_left_a_job_behind_has_no_rate(path: Path) -> None:
    await leave_a_drain(path, jobs=4, settled=3)
    with closing(Journal(path)) as journal:
        assert not journal.is_drained()
        with pytest.raises(RuntimeError, match="3 of 4 jobs were completed"):
            journal.drain_rate(4)


async def test_a_session_that_is_open_is_a_worker_process_that_is_up(path: Path) -> None:
    await leave_a_drain(path, jobs=0, settled=0)
    with closing(Journal(path)) as journal:
        assert journal.workers() == 1


def test_a_program_that_ends_early_is_quoted(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="ended before all was done:\nout of memory"),
        running(["-c", "raise SystemExit('out of memory')"], tmp_path, signal.SIGTERM) as program,
    ):
        program.wait_until(lambda: False, "all was done")


def test_a_program_sees_no_setting_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_CONCURRENCY", "3")
    show = "import os; print('seen:', os.environ.get('TRELLIS_CONCURRENCY'), flush=True); input()"
    with (
        pytest.raises(RuntimeError, match="seen: None"),
        running(["-c", show], tmp_path, signal.SIGTERM) as program,
    ):
        program.wait_until(lambda: False, "anything")


def test_payloads_are_as_long_as_those_of_the_floor_and_pages_as_long_as_those_of_the_client() -> (
    None
):
    (order,) = make_orders(1)
    assert len(order.model_dump_json()) == len(floor_sqlite.PAYLOAD)
    assert sizes.PAGE == submission.PAGE


def test_marks_come_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(marks.VARIABLE, str(tmp_path))
    mark = marks.marker("start")
    for number in (3, 1, 2**40):
        mark(number)
    assert marks.count(tmp_path, "start") == 3
    assert marks.read(tmp_path, "start") == [3, 1, 2**40]
    assert marks.read(tmp_path, "latency") == []
