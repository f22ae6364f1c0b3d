"""A worker process that crashes: its jobs are settled at once, with the evidence."""

from __future__ import annotations

import os
import signal

import pytest

from tests.worker.guardian.conftest import Shop, children
from trellis import Retry

pytestmark = pytest.mark.long

SOON = Retry.after("100ms", "100ms", "100ms", "100ms")
ONCE = Retry.fixed("100ms", attempts=1)


def test_a_handler_that_exits_its_process_counts_a_crash_with_the_code(shop: Shop) -> None:
    job_id = shop.create("exit_process", 7, retry=SOON, max_crashes=2)
    worker = shop.working()
    dead = shop.state(job_id, "dead")
    assert dead.head.crashes == 2
    assert dead.head.error is not None
    assert dead.head.error.code == "crash_loop"
    worker.wait_for_log("exited with code 7")
    line = worker.wait_for_log(f"shop/exit_process {job_id} attempt 1: The process exited with")
    assert "Next try in" in line
    code, message = shop.failure(job_id)
    assert code == "crash"
    assert message.startswith("The process exited with code 7 (peak memory ")


def test_a_segfault_is_reported_with_the_frame_that_caused_it(shop: Shop) -> None:
    job_id = shop.create("segfault", max_crashes=1)
    shop.working()
    dead = shop.state(job_id, "dead")
    assert dead.head.error is not None
    assert "was killed by SIGSEGV" in dead.head.error.message
    assert "in segfault" in dead.head.error.message


def test_a_worker_goes_on_after_a_crash_and_other_jobs_with_it(shop: Shop) -> None:
    shop.create("kill_itself", retry=SOON)
    worker = shop.working()
    worker.wait_for_log("was killed by SIGKILL (out of memory?)")
    job_id = shop.create("greet", "you")
    shop.state(job_id, "completed")
    assert worker.process.poll() is None


def test_an_attempt_beside_others_in_a_crash_is_a_suspect_and_not_counted(shop: Shop) -> None:
    innocent = shop.create("wait_for", "go", retry=SOON)
    worker = shop.working()
    shop.begun(innocent)
    guilty = shop.create("kill_itself", retry=SOON)
    shop.begun(guilty)
    handed_back = shop.event(innocent, "retry")
    assert (handed_back.data or {})["suspect"] is True
    (shop.folder / "go").touch()
    assert shop.state(innocent, "completed").head.crashes == 0
    assert shop.record(innocent).head.attempt == 1
    assert shop.state(guilty, "completed").head.crashes == 1  # alone, the second time
    assert worker.process.poll() is None


@pytest.mark.parametrize(
    "way", ["cancelling every task", "stopping the loop", "closing descriptors"]
)
def test_a_handler_that_ends_the_loop_costs_its_neighbours_no_attempt(shop: Shop, way: str) -> None:
    waiting = shop.create("wait_for", "go", retry=ONCE)
    in_thread = shop.create("wait_in_thread", "go", retry=ONCE)
    shop.working()
    shop.begun(waiting)
    shop.begun(in_thread)
    guilty = shop.create("end_loop", way, retry=SOON)
    for job_id in (waiting, in_thread, guilty):
        handed_back = shop.event(job_id, "retry")
        assert (handed_back.data or {})["suspect"] is True
    (shop.folder / "go").touch()
    for job_id in (waiting, in_thread):
        completed = shop.state(job_id, "completed").head
        assert (completed.attempt, completed.crashes) == (1, 0)


def test_a_handler_that_ends_the_loop_is_found_by_running_alone(shop: Shop) -> None:
    innocent = shop.create("wait_for", "go", retry=ONCE)
    worker = shop.working()
    shop.begun(innocent)
    guilty = shop.create("end_loop_here", "cancelling every task", retry=SOON, max_crashes=1)
    assert (shop.event(guilty, "retry").data or {})["suspect"] is True
    (shop.folder / "go").touch()
    dead = shop.state(guilty, "dead").head
    assert (dead.crashes, dead.error and dead.error.code) == (1, "crash_loop")
    completed = shop.state(innocent, "completed").head
    assert (completed.attempt, completed.crashes) == (1, 0)
    assert worker.process.poll() is None


def test_a_handler_in_a_separate_process_cannot_have_crashed_the_worker(
    shop: Shop,
) -> None:
    apart = shop.create("wait_apart", "go", retry=SOON)
    shop.working()
    shop.begun(apart)
    guilty = shop.create("kill_itself", retry=SOON)
    assert shop.state(guilty, "completed").head.crashes == 1
    assert shop.kinds(guilty).count("started") == 2
    # It was alone in that process, so it is no suspect.
    assert not any((event.data or {}).get("suspect") for event in shop.journal(guilty))
    (shop.folder / "go").touch()
    assert shop.state(apart, "completed").head.crashes == 0


def test_a_process_killed_from_outside_loses_nothing_and_at_once(shop: Shop) -> None:
    job_id = shop.create("wait_for", "go", retry=SOON)
    worker = shop.working("--lease=600s")
    begun = shop.begun(job_id)
    os.kill(begun.pid, signal.SIGKILL)
    shop.begun(job_id, 2)  # long before any lease is over
    (shop.folder / "go").touch()
    shop.state(job_id, "completed")
    assert children(worker.process.pid) != [begun.pid]


def test_a_program_that_cannot_be_loaded_ends_the_worker_with_its_error(shop: Shop) -> None:
    (shop.folder / "broken.py").write_text("app = 1 / 0")
    worker = shop.worker("broken:app")
    assert worker.wait_for_exit() == 2
    assert worker.log.count("ZeroDivisionError") == 1
    assert "Traceback" not in worker.log
