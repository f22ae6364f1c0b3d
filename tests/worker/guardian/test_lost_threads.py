"""A worker process with lost threads is replaced; its neighbours finish, and slots stay free."""

from __future__ import annotations

import os
import signal

import pytest

from tests.worker.guardian.conftest import GRACE, Shop, children, is_alive, wait_until
from trellis import Retry

pytestmark = pytest.mark.long

WAITING = ("wait_for", "wait_in_thread")
HANGING = {"retry": Retry.never(), "timeout": "300ms"}


def test_as_many_lost_threads_as_slots_do_not_stop_a_worker(shop: Shop) -> None:
    hung = [shop.create("hang", **HANGING) for _ in range(2)]
    worker = shop.working("--concurrency=2")
    first = shop.begun(hung[0]).pid
    for job_id in hung:
        shop.state(job_id, "dead")
    shop.state(shop.create("greet", "you"), "completed")
    wait_until(lambda: not is_alive(first))
    shop.state(shop.create("greet", "me"), "completed")
    line = worker.wait_for_log("still runs 1s after its timeout")
    assert "(shop/hang)" in line
    assert line.endswith("A thread cannot be stopped. This worker process is replaced.")
    worker.wait_for_log(f"Worker process {first} has lost threads: its successor is started.")
    wait_until(lambda: [each.ended_at is None for each in shop.sessions()] == [True, False])
    assert worker.log.count("Working on") == 2


def test_a_neighbour_of_a_lost_thread_finishes_beside_the_successor(shop: Shop) -> None:
    worker = shop.worker("program:app", "--concurrency=2", "--grace=1h")
    neighbour = shop.create("wait_in_thread", "go")
    first = shop.begun(neighbour).pid
    shop.state(shop.create("hang", **HANGING), "dead")
    wait_until(lambda: worker.log.count("Working on") == 2)
    shop.state(shop.create("greet", "you"), "completed")
    assert is_alive(first)
    (shop.folder / "go").touch()
    shop.state(neighbour, "completed")
    assert shop.kinds(neighbour) == ["created", "started", "completed"]
    wait_until(lambda: not is_alive(first))


def test_a_neighbour_that_outlasts_the_grace_finishes_in_the_old_process(shop: Shop) -> None:
    careful = shop.create("wait_for", "go", on_shutdown="fail")
    worker = shop.working("--concurrency=4")
    stuck = shop.create("wait_in_thread", "go")
    first = {shop.begun(each).pid for each in (careful, stuck)}
    for _ in range(2):
        shop.state(shop.create("hang", **HANGING), "dead")
    worker.wait_for_log("its successor is started")
    wait_until(lambda: len(shop.sessions()) == 2)
    wait_until(lambda: shop.worker_states()[1] == "draining")
    shop.state(shop.create_later("greet", "you", f"{3 * GRACE}s"), "completed")
    assert {shop.begun(each).pid for each in (careful, stuck)} == first
    (shop.folder / "go").touch()
    for job_id in (careful, stuck):
        shop.state(job_id, "completed")
        assert shop.kinds(job_id) == ["created", "started", "completed"]
    wait_until(lambda: not any(map(is_alive, first)))


def test_the_oldest_of_too_many_processes_hands_its_jobs_back_and_fails_none(shop: Shop) -> None:
    neighbours = [shop.create(name, "go", on_shutdown="fail") for name in WAITING]
    shop.working("--concurrency=3")
    first = shop.begun(neighbours[0]).pid
    for number in range(1, 4):
        for _ in range(2):
            shop.state(shop.create("hang", **HANGING), "dead")
        wait_until(lambda n=number: len(shop.sessions()) > n)  # type: ignore[misc]
        wait_until(lambda: shop.worker_states().count("live") == 1)
        if number < 3:  # it keeps its process alive
            neighbours.append(shop.create("wait_for", "go", on_shutdown="fail"))
            shop.begun(neighbours[-1])
    wait_until(lambda: not is_alive(first))
    (shop.folder / "go").touch()
    heads = [shop.state(each, "completed").head for each in neighbours]
    assert [(each.attempt, each.claims) for each in heads] == [(1, 2), (1, 2), (1, 1), (1, 1)]


def test_a_drain_of_a_process_that_is_replaced_holds_for_its_successor(shop: Shop) -> None:
    worker = shop.worker("program:app", "--concurrency=2", "--grace=1h")
    neighbour = shop.create("wait_in_thread", "go")
    shop.begun(neighbour)
    shop.state(shop.create("hang", **HANGING), "dead")
    worker.wait_for_log("its successor is started")
    shop.drain(shop.sessions()[-1].id)
    wait_until(lambda: len(shop.sessions()) == 2)
    (shop.folder / "go").touch()
    assert worker.wait_for_exit() == 0
    shop.state(neighbour, "completed")
    assert all(each.ended_at is not None for each in shop.sessions())


def test_a_drained_process_that_dies_is_not_followed_by_another(shop: Shop) -> None:
    worker = shop.working("--processes=1")
    job_id = shop.create("wait_for", "go", retry=Retry.after("1h"))
    pid = shop.begun(job_id).pid
    shop.drain(shop.sessions()[0].id)
    os.kill(pid, signal.SIGKILL)
    assert worker.wait_for_exit() == 0
    assert worker.log.count("Working on") == 1


def test_a_worker_with_lost_threads_drains_and_stops_without_the_grace(shop: Shop) -> None:
    for end in ("drain", "signal"):
        worker = shop.worker("program:app", "--grace=1h", "--processes=1")
        shop.state(shop.create("hang", **HANGING), "dead")
        if end == "drain":
            (session,) = [each for each in shop.sessions() if each.ended_at is None]
            shop.drain(session.id)
        else:
            worker.signal()
        assert worker.wait_for_exit() == 0
        assert all(each.ended_at is not None for each in shop.sessions())


def test_a_single_job_that_hangs_ends_with_its_worker(shop: Shop) -> None:
    job_id = shop.create("hang", **HANGING)
    worker = shop.worker("program:app", "--once")
    assert worker.wait_for_exit() == 1
    assert shop.record(job_id).head.state == "dead"
    assert worker.log.count("Working on") == 1


def test_signals_stop_the_old_process_and_its_successor(shop: Shop) -> None:
    worker = shop.worker("program:app", "--concurrency=2", "--grace=1h")
    old = shop.create("wait_in_thread", "go", retry=Retry.after("1h"))
    shop.begun(old)
    shop.state(shop.create("hang", **HANGING), "dead")
    wait_until(lambda: worker.log.count("Working on") == 2)
    new = shop.create("wait_in_thread", "go", retry=Retry.after("1h"))
    shop.begun(new)
    live = ["live", "draining"]
    wait_until(lambda: shop.worker_states() == live)
    # Signals that follow each other closely count as one; a later one ends the grace.
    wait_until(lambda: "Stopping at once." in worker.log or not worker.signal())
    assert worker.wait_for_exit() == 130
    for job_id in (old, new):
        assert shop.kinds(job_id) == ["created", "started", "retry"]
        assert shop.record(job_id).head.attempt == 0


def test_both_processes_hand_their_jobs_back_when_the_guardian_dies(shop: Shop) -> None:
    worker = shop.worker("program:app", "--concurrency=2", "--grace=2s")
    old = shop.create("wait_for", "go", retry=Retry.after("1h"))
    shop.begun(old)
    shop.state(shop.create("hang", **HANGING), "dead")
    wait_until(lambda: worker.log.count("Working on") == 2)
    new = shop.create("wait_for", "go", retry=Retry.after("1h"))
    shop.begun(new)
    processes = children(worker.process.pid)
    os.kill(worker.process.pid, signal.SIGKILL)
    for job_id in (old, new):
        shop.event(job_id, "retry")
        assert shop.record(job_id).head.attempt == 0
    wait_until(lambda: not any(map(is_alive, processes)))
