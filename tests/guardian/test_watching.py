"""A worker process that does not answer is not taken for dead, and one that is stopped is."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.guardian.conftest import Shop, is_alive, stop_process, wait_until
from trellis import Retry, Service
from trellis.engines.values import LockRecord

SOON = Retry.after("100ms", "100ms", "100ms", "100ms")
LEASE = "--lease=600ms"
#: Long enough for the interpreter to fall silent for several leases.
BLOCKED = 2.5


def started_once(shop: Shop, job_id: str) -> bool:
    return shop.kinds(job_id).count("started") == 1


def test_a_blocked_loop_costs_no_lease_and_is_named_with_the_frame(shop: Shop) -> None:
    job_id = shop.create("block_loop", BLOCKED)
    worker = shop.working(LEASE, "--types=block_loop")
    begun = shop.begun(job_id)
    other = shop.working(LEASE)
    shop.state(job_id, "completed")
    assert started_once(shop, job_id)
    line = worker.says("has stood still")
    assert "program.py:" in line
    assert "in block_loop" in line
    assert job_id in line
    assert "belongs in a plain function" in line
    worker.says("moves again")
    assert is_alive(begun.pid)
    assert "has stood still" not in other.log


def test_a_held_interpreter_lock_costs_no_lease(shop: Shop) -> None:
    job_id = shop.create("keep_lock_a_while")
    worker = shop.working(LEASE, "--types=keep_lock_a_while", "--poll=200ms")
    shop.begun(job_id)
    shop.working(LEASE)
    shop.state(job_id, "completed")
    assert started_once(shop, job_id)
    assert "Session" not in worker.log


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
    worker.says("An attempt blocked it past its timeout.")


def test_who_blocked_a_process_past_a_neighbour_s_timeout_is_a_suspect(shop: Shop) -> None:
    late = shop.create("wait_a_little", retry=SOON, timeout="500ms")
    shop.working()
    guilty = shop.create("block_loop", 600.0, retry=SOON)
    handed_back = wait_until(
        lambda: next((x for x in shop.journal(guilty) if x.kind == "retry"), None)
    )
    assert (handed_back.data or {})["suspect"] is True
    shop.state(late, "completed")


def test_a_leader_whose_loop_is_blocked_leaves_the_upkeep_to_another(shop: Shop) -> None:
    first = shop.working(LEASE, "--types=block_loop")
    wait_until(lambda: leader(shop))
    blocking = shop.create("block_loop", 600.0)
    shop.begun(blocking)
    delayed = shop.create_later("greet", "you", "100ms")
    shop.working(LEASE, "--types=greet")
    shop.state(delayed, "completed")
    assert first.process.poll() is None
    assert shop.kinds(blocking) == ["created", "started"]


def test_a_process_whose_lines_nobody_reads_is_not_held_up(shop: Shop) -> None:
    job_id = shop.create("chatter", "go")
    shop.unread("program:app", "--grace=1s")
    shop.begun(job_id)
    (shop.folder / "go").touch()
    shop.state(job_id, "completed")


def leader(shop: Shop) -> list[LockRecord]:
    async def ask() -> list[LockRecord]:
        async with Service("shop", shop.url) as service:
            return await (await service.connection.engine()).locks()

    return asyncio.run(ask())


def test_a_stopped_process_loses_its_jobs_and_its_late_result_is_refused(shop: Shop) -> None:
    job_id = shop.create("wait_for", "go", retry=SOON)
    zombie = shop.working(LEASE)
    begun = shop.begun(job_id)
    stop_process(begun.pid, shop.folder / "trellis.db")  # alone; its guardian goes on
    other = shop.working(LEASE)
    second = shop.begun(job_id, 2)
    assert second.pid != begun.pid
    (shop.folder / "go").touch()
    shop.state(job_id, "completed")
    os.kill(begun.pid, signal.SIGCONT)
    wait_until(lambda: "staleCompletionIgnored" in shop.kinds(job_id) or _is_over(zombie.log))
    assert shop.kinds(job_id).count("completed") == 1
    assert "ended" not in other.log


def test_a_process_that_stands_still_past_the_stall_limit_is_ended(shop: Shop) -> None:
    job_id = shop.create("block_loop", 600.0, retry=SOON, max_crashes=1)
    worker = shop.working(TRELLIS_LEASE="900ms", TRELLIS_STALL_LIMIT="3s")
    begun = shop.begun(job_id)
    dead = shop.state(job_id, "dead")
    assert not is_alive(begun.pid)
    assert dead.head.error is not None
    assert "Its loop had stood still" in worker.log


def _is_over(log: str) -> bool:
    return "its jobs are lost to them" in log
