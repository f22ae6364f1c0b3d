"""A blocked worker process keeps its lease; a stopped one loses it."""

from __future__ import annotations

import asyncio
import os
import re
import signal

import pytest

from tests.worker.guardian.conftest import Shop, is_alive, stop_process, wait_until
from trellis import Retry, Service
from trellis.core.durations import SECOND
from trellis.engines.values import LockHolder

pytestmark = pytest.mark.long

SOON = Retry.after("100ms", "100ms", "100ms", "100ms")
LEASE = "--lease=600ms"


def test_a_blocked_loop_and_a_held_interpreter_lock_cost_no_lease_and_are_named(
    shop: Shop,
) -> None:
    """Another worker sweeps: it ends a session that was silent for less long than these are."""
    sweeper = shop.working(LEASE, "--types=greet")
    with shop.gate("gate"):
        jobs = [shop.create(name, "gate") for name in ("hold_loop", "hold_interpreter")]
        loop, lock = (
            shop.worker("program:app", "--lease=4s", f"--types={name}")
            for name in ("hold_loop", "hold_interpreter")
        )
        begun = [shop.begun(job_id) for job_id in jobs]
        shop.wait_for_expired_session(6 * SECOND)
        line = loop.wait_for_log("has been blocked for")
        assert re.search(r"at .*program\.py:\d+ in hold_loop. Jobs in it: " + jobs[0], line)
        assert "belongs in a plain function" in line
        line = lock.wait_for_log("has been blocked for")
        assert re.search(r"at .*program\.py:\d+ in hold_interpreter. Jobs in it: " + jobs[1], line)
        assert "isolation='process'" in line
    for job_id in jobs:
        shop.state(job_id, "completed")
        assert shop.kinds(job_id) == ["created", "started", "completed"]
    loop.wait_for_log("runs again")
    lock.wait_for_log("runs again")
    assert all(is_alive(each.pid) for each in begun)
    assert "has been blocked for" not in sweeper.log


def test_a_timeout_is_enforced_from_outside(shop: Shop) -> None:
    job_id = shop.create("block_too_long", retry=SOON, timeout="500ms")
    worker = shop.working()
    first = shop.begun(job_id)
    assert shop.begun(job_id, 2).pid != first.pid
    shop.state(job_id, "completed")
    assert not is_alive(first.pid)
    code, message = shop.failure(job_id)
    assert code == "timeout"
    assert "in a process that did not answer" in message
    worker.wait_for_log("An attempt blocked it for longer than its timeout.")


def test_an_attempt_that_blocked_others_past_their_timeout_is_a_suspect(shop: Shop) -> None:
    late = shop.create("wait_a_little", retry=SOON, timeout="500ms")
    shop.working()
    guilty = shop.create("block_loop", 600.0, retry=SOON)
    handed_back = wait_until(
        lambda: next((x for x in shop.journal(guilty) if x.kind == "retry"), None)
    )
    assert (handed_back.data or {})["suspect"] is True
    shop.state(late, "completed")


def test_a_forced_cancel_ends_a_process_whose_loop_its_job_blocks(shop: Shop) -> None:
    neighbour = shop.create("wait_for", "go", retry=SOON)
    worker = shop.working()
    first = shop.begun(neighbour).pid
    guilty = shop.create("block_loop", 600.0, retry=SOON)
    shop.begun(guilty)
    shop.cancel(guilty)
    wait_until(lambda: not is_alive(first))
    (shop.folder / "go").touch()
    head = shop.state(neighbour, "completed").head
    assert (head.attempt, head.claims, head.crashes) == (1, 2, 0)
    assert all("suspect" not in (event.data or {}) for event in shop.journal(neighbour))
    assert shop.kinds(guilty) == ["created", "started", "cancelled"]
    worker.wait_for_log(f"Killing worker process {first}. A job that was cancelled")


def test_a_leader_whose_loop_is_blocked_leaves_the_maintenance_to_another(shop: Shop) -> None:
    first = shop.working("--lease=3s", "--types=block_loop")
    wait_until(lambda: leader(shop))
    blocking = shop.create("block_loop", 600.0)
    shop.begun(blocking)
    delayed = shop.create_later("greet", "you", "100ms")
    shop.working(LEASE, "--types=greet")
    shop.state(delayed, "completed")
    assert first.process.poll() is None
    assert shop.kinds(blocking) == ["created", "started"]


def test_a_process_whose_stderr_is_not_read_is_not_blocked(shop: Shop) -> None:
    job_id = shop.create("chatter", "go")
    shop.start_unread("program:app", "--grace=1s")
    shop.begun(job_id)
    (shop.folder / "go").touch()
    shop.state(job_id, "completed")


def leader(shop: Shop) -> list[LockHolder]:
    async def ask() -> list[LockHolder]:
        async with Service("shop", shop.url) as service:
            return await (await service.connection.engine()).locks()

    return asyncio.run(ask())


def test_a_stopped_process_loses_its_jobs_and_its_late_result_is_refused(shop: Shop) -> None:
    job_id = shop.create("wait_in_thread", "go", retry=SOON)
    zombie = shop.working("--lease=2s")
    begun = shop.begun(job_id)
    stop_process(begun.pid, shop.folder / "trellis.db")  # alone; its guardian goes on
    other = shop.working()
    second = shop.begun(job_id, 2)
    assert second.pid != begun.pid
    (shop.folder / "go").touch()
    shop.state(job_id, "completed")
    os.kill(begun.pid, signal.SIGCONT)
    zombie.wait_for_log("was ended by another worker, because its lease expired")
    refused = wait_until(
        lambda: [x for x in shop.journal(job_id) if x.kind == "staleCompletionIgnored"]
    )
    first, last = (event for event in shop.journal(job_id) if event.kind == "started")
    assert [event.fence for event in refused] == [first.fence]
    assert shop.kinds(job_id).count("completed") == 1
    assert shop.record(job_id).head.state == "completed"
    assert first.fence != last.fence
    assert "was ended by another worker" not in other.log


def test_a_process_blocked_past_the_stall_limit_is_killed(shop: Shop) -> None:
    job_id = shop.create("block_loop", 600.0, retry=SOON, max_crashes=1)
    worker = shop.working(TRELLIS_LEASE="900ms", TRELLIS_STALL_LIMIT="2s")
    begun = shop.begun(job_id)
    dead = shop.state(job_id, "dead")
    assert not is_alive(begun.pid)
    assert dead.head.error is not None
    assert "Its event loop was blocked" in worker.log
