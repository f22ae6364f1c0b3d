"""SIGTERM hands work back within the grace + 2 s, even from a handler that is stuck."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.harness.signals import ignored_by_children
from tests.worker.guardian.conftest import GRACE, Shop, children, descendants, is_alive, wait_until
from trellis import PerKey, Retry

pytestmark = pytest.mark.long

#: How many seconds the guardian may take in addition to the grace.
MORE = 2.0
#: The journal uses the same clock; a millisecond for rounding.
SLACK = 0.001


@pytest.mark.parametrize(
    ("job_type", "payload"),
    [("sleep_in_thread", 600.0), ("keep_lock", None), ("block_loop", 600.0)],
)
def test_a_stuck_handler_is_handed_back_and_its_process_gone(
    shop: Shop, job_type: str, payload: object
) -> None:
    job_id = shop.create(job_type, payload)
    worker = shop.working("--types", job_type)
    begun = shop.begun(job_id)
    sent = worker.signal()
    assert worker.wait_for_exit() == 0
    ended = time.time()
    assert not is_alive(begun.pid)
    created, started, handed_back = shop.journal(job_id)
    assert (created.kind, started.kind, handed_back.kind) == ("created", "started", "retry")
    assert shop.record(job_id).head.attempt == 0
    assert handed_back.at / 1e6 - sent <= GRACE + MORE + SLACK
    assert ended - sent <= GRACE + MORE + SLACK


def test_a_handler_that_is_slow_to_be_cancelled_is_handed_back_uncounted(shop: Shop) -> None:
    job_id = shop.create("leave_slowly", retry=Retry.never())
    worker = shop.working()
    shop.begun(job_id)
    worker.signal()
    assert worker.wait_for_exit() == 0
    assert shop.kinds(job_id) == ["created", "started", "retry"]
    assert shop.record(job_id).head.attempt == 0


def test_the_key_of_a_stuck_handler_is_free_once_its_process_is_gone(shop: Shop) -> None:
    job_id = shop.create("sleep_keyed", "k", per_key=PerKey.in_turn("one"))
    worker = shop.working("--lease=600s")
    shop.begun(job_id)
    worker.signal()
    assert worker.wait_for_exit() == 0
    shop.working("--lease=600s")  # a lease that no test outlives
    shop.state(job_id, "completed")


def test_a_handler_may_write_to_stderr_after_the_guardian_has_ended(shop: Shop) -> None:
    job_id = shop.create("chatter", "go")
    worker = shop.worker("program:app", "--grace=30s")
    shop.begun(job_id)
    worker.signal(signal.SIGKILL)
    wait_until(lambda: worker.log.endswith("still here\n"))  # past the guardian, by now
    (shop.folder / "go").touch()
    assert shop.state(job_id, "completed").head.attempt == 1


def test_closing_the_terminal_stops_gracefully(shop: Shop) -> None:
    job_id = shop.create("wait_for", "never")
    worker = shop.working()
    begun = shop.begun(job_id)
    worker.signal(signal.SIGHUP)
    os.kill(begun.pid, signal.SIGHUP)
    assert worker.wait_for_exit() == 0
    assert shop.kinds(job_id) == ["created", "started", "retry"]


def test_a_guardian_started_as_a_background_job_stops_on_sigint_and_survives_a_hangup(
    shop: Shop,
) -> None:
    with ignored_by_children(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # nohup … &
        worker = shop.working()
    worker.signal(signal.SIGHUP)
    job_id = shop.create("wait_for", "never")
    shop.begun(job_id)
    worker.signal(signal.SIGINT)
    assert worker.wait_for_exit() == 0
    assert "Stopping" in worker.log
    assert shop.kinds(job_id) == ["created", "started", "retry"]


def test_a_handler_that_ends_within_the_grace_completes(shop: Shop) -> None:
    job_id = shop.create("wait_for", "go")
    worker = shop.worker("program:app", "--grace=20s")
    shop.begun(job_id)
    worker.signal()
    worker.wait_for_log("Stopping: handlers have 20s to finish")
    (shop.folder / "go").touch()
    assert worker.wait_for_exit() == 0
    assert shop.kinds(job_id) == ["created", "started", "completed"]


def test_a_second_signal_stops_at_once(shop: Shop) -> None:
    job_id = shop.create("wait_for", "never")
    worker = shop.worker("program:app", "--grace=600s")
    shop.begun(job_id)
    worker.signal(signal.SIGINT)
    worker.wait_for_log("Stopping")
    wait_until(lambda: worker.signal(signal.SIGINT) and "Stopping at once" in worker.log)
    assert worker.wait_for_exit() == 130
    assert shop.kinds(job_id) == ["created", "started", "retry"]


def test_one_request_sent_twice_is_one_request(shop: Shop) -> None:
    """As launchers do that signal their child and then its group."""
    job_id = shop.create("wait_for", "go")
    worker = shop.worker("program:app", "--grace=20s")
    shop.begun(job_id)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        worker.signal(number)
    worker.wait_for_log("Stopping")
    (shop.folder / "go").touch()
    assert worker.wait_for_exit() == 0
    assert shop.kinds(job_id) == ["created", "started", "completed"]


@pytest.mark.parametrize("job_type", ["wait_for", "wait_in_thread", "wait_apart"])
def test_a_worker_whose_guardian_was_killed_hands_back_and_ends(shop: Shop, job_type: str) -> None:
    job_id = shop.create(job_type, "never")
    worker = shop.working("--lease=600s")
    shop.begun(job_id)
    processes = descendants(worker.process.pid)
    worker.signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, processes)))
    assert shop.kinds(job_id) == ["created", "started", "retry"]


def test_signals_to_the_worker_process_alone_are_left_to_the_guardian(shop: Shop) -> None:
    job_id = shop.create("wait_for", "go")
    worker = shop.working()
    begun = shop.begun(job_id)
    os.kill(begun.pid, signal.SIGINT)
    os.kill(begun.pid, signal.SIGTERM)
    (shop.folder / "go").touch()
    shop.state(job_id, "completed")
    assert children(worker.process.pid) == [begun.pid]
