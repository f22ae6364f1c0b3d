"""Handlers that crash their process: no other job is affected, and crashes are counted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.worker.faulty import eventually
from tests.worker.isolation import isolated
from tests.worker.isolation.isolated import lives, shop
from trellis import Job, JobDead, JobRef, Service, State, control
from trellis.core.commands import Crash
from trellis.core.durations import SECOND
from trellis.core.job import Head, JobId
from trellis.engines.demand import Demand
from trellis.testing import a_worker

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def url(tmp_path: Path) -> None:
    shop.connection.point_at(f"sqlite:///{tmp_path / 'jobs.db'}")


async def head(service: Service, ref: JobRef[Any]) -> Head:
    engine = await service.connection.engine()
    record = (await engine.load([JobId(ref.id)])).records[0]
    assert record is not None
    return record.head


async def suspects(
    service: Service, job: Job[Any, Any], payloads: Sequence[object] = (None,)
) -> list[JobRef[Any]]:
    """Create jobs whose process has died with them and others inside."""
    engine = await service.connection.engine()
    refs = await job.create_many(payloads)
    session = await engine.open_session(a_worker(), 30 * SECOND)
    demand = Demand(service.name, (job.name,), len(refs))
    claimed = await engine.claim(session.id, [demand], len(refs))
    crashes = [
        (record, Crash(record.head.fence, "died", alone=False))
        for record in claimed.jobs
        if record.head.fence is not None
    ]
    await control.apply_all(engine, crashes, claimed.now)
    await engine.close_session(session.id)
    assert all([(await head(service, ref)).suspect for ref in refs])
    return refs


async def test_a_handler_that_ends_its_process_is_counted_with_the_evidence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    endings = {
        isolated.exit_at_once: "exited with code 3 (peak memory ",
        isolated.segfault: "was killed by SIGSEGV (peak memory ",
        isolated.kill_itself: "was killed by SIGKILL (out of memory?) (peak memory ",
        isolated.close_files: "Its handler closed the channel to the worker.",
        isolated.talk_nonsense: "It was killed because it sent an invalid message: not J",
    }
    async with shop, shop.worker(concurrency=3):
        refs = [await job.create() for job in endings]
        for ref, text in zip(refs, endings.values(), strict=True):
            with pytest.raises(JobDead, match="Crashed its process once: The handler's proc"):
                await ref.wait("60s")
            ended = await head(shop, ref)
            assert ended.error is not None
            assert (ended.state, ended.error.code) == (State.DEAD, "crash_loop")
            assert text in ended.error.message
        engine = await shop.connection.engine()
        lines = await engine.logs(JobId(refs[4].id))
        errors = [(await head(shop, ref)).error for ref in refs]
    assert [line.message for line in lines] == ["before"]
    segfault, killed = errors[1], errors[2]
    assert segfault is not None
    assert "Fatal Python error: Segmentation fault" in segfault.message
    assert "in segfault" in segfault.message
    assert "in segfault" in capsys.readouterr().err
    assert killed is not None
    # "at most": a process that is forked counts what its parent had, here all other tests' memory.
    peak = int(killed.message.partition("peak memory ")[2].removeprefix("at most ").split()[0])
    assert peak > 300


async def test_a_job_that_keeps_crashing_its_process_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "processes"
    async with shop, shop.worker(poll="20ms"):
        ref = await isolated.crash_twice.create(str(path))
        with pytest.raises(JobDead, match="Crashed its process 2 times"):
            await ref.wait("30s")
        assert await isolated.where_here.run_inline() == os.getpid()
    processes = path.read_text().split()
    assert len(set(processes)) == len(processes) == 2
    assert (await head(shop, ref)).crashes == 2


async def test_a_suspect_runs_in_a_fresh_process_that_runs_no_other_job() -> None:
    async with shop:
        (ref,) = await suspects(shop, isolated.where_here)
        first = await isolated.where_plain.create("first", priority=4)
        async with shop.worker(concurrency=1):
            process = (await first.wait("30s"))["process"]
            alone = await ref.wait("30s")
            assert alone not in (os.getpid(), process)
            await eventually(lambda: not lives(alone))
            other = await isolated.where_here.create()
            assert await other.wait("30s") == os.getpid()
    after = await head(shop, ref)
    assert (after.state, after.attempt, after.crashes) == (State.COMPLETED, 1, 0)


async def test_a_suspect_that_crashes_alone_is_counted_and_given_up_in_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "processes"
    async with shop:
        (ref,) = await suspects(shop, isolated.crash_as_suspect, [str(path)])
        async with shop.worker(poll="20ms"):
            with pytest.raises(JobDead, match="Crashed its process 2 times"):
                await ref.wait("30s")
    assert len(set(path.read_text().split())) == 2
    assert (await head(shop, ref)).crashes == 2


async def test_a_suspect_that_only_this_process_finds_runs_alone_in_it() -> None:
    own = Service("own", "memory://")
    running: set[str] = set()
    seen: list[tuple[set[str], list[bool]]] = []
    go_on = asyncio.Event()

    @own.job
    async def before() -> None:
        running.add("before")
        await go_on.wait()
        running.discard("before")

    @own.job
    async def accused(name: str) -> None:
        running.add(name)
        await asyncio.sleep(0)
        seen.append((set(running), [each.isolated for each in worker._status.running()]))
        running.discard(name)

    async with own:
        await before.create()
        refs = await suspects(own, accused, ["first", "second"])
        async with own.worker(concurrency=4, poll="20ms") as worker:
            await eventually(lambda: len(worker._attempts.running) == 2)
            assert sorted(each.isolated for each in worker._status.running()) == [False, True]
            late = await accused.create("late")
            # The second cannot run yet: it is handed back and stays a suspect.
            await eventually(lambda: worker.settled == 1)
            assert all([(await head(own, ref)).suspect for ref in refs])
            assert (running, seen) == ({"before"}, [])
            go_on.set()
            for ref in (*refs, late):
                await ref.wait("30s")
    assert [each for each in seen if each[0] & {"first", "second"}] == [
        ({"first"}, [False]),
        ({"second"}, [False]),
    ]


async def test_an_idle_process_that_dies_costs_no_job_an_attempt() -> None:
    async with shop, shop.worker(concurrency=1) as worker:
        idle = (await (await isolated.where_plain.create("a")).wait("30s"))["process"]
        os.kill(idle, signal.SIGSTOP)  # it will not take what it is given
        ref = await isolated.where_plain.create("b")
        await eventually(lambda: len(worker._attempts.running) == 1)
        os.kill(idle, signal.SIGKILL)
        assert (await ref.wait("30s"))["process"] != idle
    after = await head(shop, ref)
    assert (after.attempt, after.claims, after.crashes) == (1, 1, 0)


async def test_an_isolated_attempt_is_marked_in_the_shared_status(tmp_path: Path) -> None:
    path = tmp_path / "begun"
    async with shop, shop.worker(grace="10ms") as worker:
        await isolated.keep_the_lock.create(str(path))
        await eventually(path.exists)
        (running,) = worker._status.running()
        assert running.isolated
    assert not worker._status.running()
