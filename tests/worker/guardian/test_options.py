"""The options of `trellis worker`."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from tests.worker.guardian.conftest import Shop, children, is_alive, wait_until
from trellis import Retry, Service
from trellis.engines.values import SessionRecord

pytestmark = pytest.mark.long


def drain(shop: Shop, session: SessionRecord) -> None:
    async def ask() -> bool:
        async with Service("shop", shop.url) as service:
            return await (await service.connection.engine()).ask_drain(session.id)

    assert asyncio.run(ask())


@pytest.mark.parametrize(("job_type", "code"), [("greet", 0), ("fail", 1), ("kill_itself", 1)])
def test_once_runs_one_job_and_exits_by_its_outcome(shop: Shop, job_type: str, code: int) -> None:
    payload = None if job_type == "kill_itself" else "you"
    first, second = (shop.create(job_type, payload, retry=Retry.after("1h")) for _ in range(2))
    assert shop.worker("program:app", "--once").wait_for_exit() == code
    assert shop.kinds(first)[:2] == ["created", "started"]
    assert shop.kinds(second) == ["created"]


@pytest.mark.parametrize(
    ("job_type", "code"),
    [("wait_for", 1), ("wait_in_thread", 1), ("hold_loop", 1), (None, 0)],
)
def test_once_that_is_stopped_exits_by_whether_its_job_was_completed(
    shop: Shop, job_type: str | None, code: int
) -> None:
    with shop.gate("gate"):
        payload = "gate" if job_type == "hold_loop" else "never"
        job_id = shop.create(job_type, payload) if job_type else None
        worker = shop.working("--once", "--grace=1s")
        if job_id is not None:
            shop.begun(job_id)
        worker.signal()
        assert worker.wait_for_exit() == code
    assert job_id is None or shop.kinds(job_id)[-1] == "retry"


def test_once_that_finds_no_job_exits_after_its_idle_time(shop: Shop) -> None:
    worker = shop.working("--once", "--idle=300ms")
    assert worker.wait_for_exit() == 0
    assert "No job for 300ms: the process ends." in worker.log


def test_an_idle_time_begins_when_the_last_job_has_ended(shop: Shop) -> None:
    job_id = shop.create("wait_for", "go")
    worker = shop.working("--idle=500ms", "--lease=900ms")
    shop.begun(job_id)
    shop.wait_for_expired_session(2 * 500_000)  # the worker outlasts its idle time
    (shop.folder / "go").touch()
    assert worker.wait_for_exit() == 0
    assert shop.kinds(job_id)[-1] == "completed"


def test_the_first_lines_name_the_database_and_say_that_it_is_made(shop: Shop) -> None:
    worker = shop.working()
    path = shop.folder / "trellis.db"
    assert f"There is no database at {path}; creating it." in worker.log
    assert f" at sqlite:///{path} in 10 slots" in worker.log
    assert "creating it" not in shop.working().log


def test_a_process_is_replaced_after_max_jobs(shop: Shop) -> None:
    jobs = [shop.create("greet", "you") for _ in range(5)]
    shop.working("--max-jobs=2")
    pids = [shop.begun(job_id).pid for job_id in jobs]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]


def test_slots_that_the_last_jobs_leave_free_are_used_by_a_successor(shop: Shop) -> None:
    last = shop.create("wait_for", "go")
    worker = shop.working("--max-jobs=1", "--concurrency=4")
    first = shop.begun(last).pid
    shop.state(shop.create("greet", "you"), "completed")
    worker.wait_for_log(f"Worker process {first} has begun as many jobs as it may")
    assert is_alive(first)
    (shop.folder / "go").touch()
    shop.state(last, "completed")
    assert shop.kinds(last) == ["created", "started", "completed"]
    wait_until(lambda: not is_alive(first))


def test_no_process_leaves_early_for_one_that_has_run_its_jobs(shop: Shop) -> None:
    waiting = []
    worker = shop.working("--max-jobs=1", "--concurrency=4")
    for _ in range(3):
        waiting.append(shop.create("wait_for", "go"))
        shop.begun(waiting[-1])
    later = shop.create("greet", "you")
    wait_until(lambda: set(shop.worker_states()) == {"draining"})
    (shop.folder / "go").touch()
    for job_id in (*waiting, later):
        shop.state(job_id, "completed")
        assert shop.kinds(job_id) == ["created", "started", "completed"]
    assert "did not exit" not in worker.log


def test_a_process_above_max_memory_is_replaced(shop: Shop) -> None:
    worker = shop.working("--max-memory=150MB")
    (first,) = children(worker.process.pid)
    shop.state(shop.create("eat_memory"), "completed")
    worker.wait_for_log("more than its limit of 150 MB")
    wait_until(lambda: children(worker.process.pid) not in ([first], []))


def test_worker_rows_have_name_and_load_and_a_drained_worker_ends(shop: Shop) -> None:
    job_id = shop.create("wait_for", "go")
    worker = shop.working("--lease=900ms", "--name=left", "--concurrency=3")
    begun = shop.begun(job_id)
    session = wait_until(lambda: next((x for x in shop.sessions() if x.report.running == 1), None))
    assert (session.info.name, session.info.pid) == ("left", begun.pid)
    assert session.info.version
    assert json.loads(session.info.details)["slots"] == 3
    assert "shop/greet" in json.loads(session.info.details)["types"]
    drain(shop, session)
    worker.wait_for_log("Draining")
    later = shop.create("greet", "you")
    (shop.folder / "go").touch()
    assert worker.wait_for_exit() == 0
    assert shop.kinds(job_id)[-1] == "completed"
    assert shop.kinds(later) == ["created"]


def test_two_workers_of_one_name_both_work(shop: Shop) -> None:
    jobs = [shop.create("wait_for", "go") for _ in range(2)]
    for _ in range(2):
        shop.working("--name=twin", "--concurrency=1")
    assert len({shop.begun(job_id).pid for job_id in jobs}) == 2
    (shop.folder / "go").touch()
    for job_id in jobs:
        shop.state(job_id, "completed")
    assert [x.info.name for x in shop.sessions()] == ["twin", "twin"]


def test_several_processes_share_the_work(shop: Shop) -> None:
    jobs = [shop.create("wait_for", "go") for _ in range(2)]
    worker = shop.working("--processes=2", "--concurrency=1")
    assert {shop.begun(job_id).pid for job_id in jobs} == set(children(worker.process.pid))
    worker.signal()
    assert worker.wait_for_exit() == 0
    assert [shop.kinds(job_id)[-1] for job_id in jobs] == ["retry", "retry"]


@pytest.mark.long
def test_the_end_of_the_last_of_many_processes_is_seen_while_the_others_live(shop: Shop) -> None:
    """The threads of a pool would all wait for older processes (six, on two cores)."""
    jobs = [shop.create("wait_for", "go", retry=Retry.after("100ms")) for _ in range(8)]
    worker = shop.working("--processes=8", "--concurrency=1", "--lease=600s")
    youngest = max((shop.begun(job_id) for job_id in jobs), key=lambda begun: begun.pid)
    os.kill(youngest.pid, signal.SIGKILL)
    worker.wait_for_log(f"Worker process {youngest.pid} was killed by SIGKILL")
    shop.begun(youngest.job_id, 2)


def test_types_choose_and_a_wrong_name_is_refused(shop: Shop) -> None:
    chosen, other = shop.create("greet", "you"), shop.create("wait_for", "never")
    shop.working("--types=greet")
    shop.state(chosen, "completed")
    assert shop.kinds(other) == ["created"]
    refused = shop.worker("program:app", "--types=gret")
    assert refused.wait_for_exit() == 2
    assert "has no handler for the type 'gret'. Did you mean greet?" in refused.log


def test_a_worker_runs_its_types_in_every_queue_unless_queues_are_named(shop: Shop) -> None:
    usual = shop.create("greet", "you")
    elsewhere = shop.create("greet", "them", queue="elsewhere")
    narrow = shop.working("--queues=elsewhere")
    shop.state(elsewhere, "completed")
    assert shop.kinds(usual) == ["created"]
    narrow.signal()
    assert narrow.wait_for_exit() == 0
    moved = shop.create("greet", "us", queue="old")
    shop.working()
    shop.state(usual, "completed")
    shop.state(moved, "completed")


def test_json_logs_carry_job_attempt_and_trace(shop: Shop) -> None:
    greeted, failed = (
        shop.create("greet", "you"),
        shop.create("fail", "no\n{}", retry=Retry.never()),
    )
    worker = shop.working("--log-format=json")
    shop.state(greeted, "completed")
    shop.state(failed, "dead")
    worker.signal()
    assert worker.wait_for_exit() == 0
    lines = [json.loads(line) for line in worker.log.splitlines()]
    (own,) = [line for line in lines if line["logger"] == "shop.greeting"]
    assert (own["job"], own["attempt"], own["message"]) == (greeted, 1, "about to greet")
    assert own["trace"] == shop.record(greeted).definition.context.trace_id
    (about,) = [line for line in lines if line["logger"] == "trellis.jobs"]
    assert (about["job"], about["level"], about["type"]) == (failed, "error", "shop/fail")
    assert "ValueError: no" in about["message"]
    assert about["exception"].endswith("ValueError: no\n{}")
    assert {"time", "level", "logger", "message", "pid"} <= lines[0].keys()
