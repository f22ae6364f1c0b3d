"""Stopping a handler in another process: it is interrupted, then killed, and then settled."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.faulty import eventually
from tests.worker.isolation import isolated
from tests.worker.isolation.isolated import lives, shop
from trellis import Job, JobCancelled, JobDead, JobRef, State, control
from trellis.core.commands import Cancel
from trellis.core.events import Event
from trellis.core.job import Head, JobId
from trellis.worker.attempt import Stop
from trellis.worker.supervisor import Supervisor

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def url(tmp_path: Path) -> str:
    place = f"sqlite:///{tmp_path / 'jobs.db'}"
    shop.connection.point_at(place)
    return place


async def head(ref: JobRef[Any]) -> Head:
    engine = await shop.connection.engine()
    record = (await engine.load([JobId(ref.id)])).records[0]
    assert record is not None
    return record.head


async def process_in(path: Path) -> int:
    await eventually(path.exists, 60)
    return read(path)


def read(path: Path) -> int:
    return int(path.read_text())


def started_by(path: Path) -> int:
    """Return the process that the handler of this path has started."""
    (started,) = path.parent.glob(f"{path.name}.*.started")
    return int(started.suffixes[0][1:])


def is_gone(process: int) -> Callable[[], bool]:
    return lambda: not lives(process)


async def test_a_timeout_kills_the_process_with_all_it_started_and_frees_the_key(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    async with shop, shop.worker(concurrency=2):
        refs = [await isolated.sleep_too_long.create(str(path)) for path in paths]
        for ref, path in zip(refs, paths, strict=True):
            with pytest.raises(JobDead, match="took longer than 300ms"):
                await ref.wait("60s")
            assert not lives(await process_in(path))
            await eventually(is_gone(started_by(path)))


async def test_a_coroutine_may_clean_up_before_its_process_is_killed(tmp_path: Path) -> None:
    async with shop, shop.worker():
        ref = await isolated.clean_up.create(str(tmp_path / "cleaned"))
        with pytest.raises(JobDead, match="took longer than 300ms"):
            await ref.wait("60s")
        assert (tmp_path / "cleaned").exists()
        late = await isolated.return_late.create(str(tmp_path / "late"))
        assert await late.wait("60s") == "in spite of all"
        process = await process_in(tmp_path / "late")
        await eventually(is_gone(process))


async def test_a_handler_sees_that_it_should_stop(tmp_path: Path) -> None:
    async with shop:
        async with shop.worker(concurrency=2):
            ref = await isolated.look.create(str(tmp_path / "looks"))
            stays = await isolated.look.create(str(tmp_path / "stays"))
            await process_in(tmp_path / "looks")
            await ref.cancel()
            with pytest.raises(JobCancelled):
                await ref.wait("60s")
            process = await process_in(tmp_path / "stays")
        assert (await head(stays)).state is State.COMPLETED
        await eventually(is_gone(process))


async def test_a_cancel_that_comes_before_the_process_is_there_reaches_the_handler(
    tmp_path: Path,
) -> None:
    async with shop, shop.worker() as worker:
        ref = await isolated.look.create(str(tmp_path / "looks"))
        await eventually(lambda: len(worker._attempts.running) == 1)
        (attempt,) = worker._attempts.running.values()
        attempt.cancel_requested = True
        with pytest.raises(JobCancelled):
            await ref.wait("60s")


async def run_until_begun(worker: Supervisor, path: Path) -> int:
    """Return the process of the one handler that runs, once it does."""
    process = await process_in(path)
    (attempt,) = worker._attempts.running.values()
    await eventually(lambda: attempt.started_at is not None)
    return process


async def test_a_forced_cancel_ends_the_process(tmp_path: Path) -> None:
    async with shop, shop.worker() as worker:
        ref = await isolated.sleep.create(str(tmp_path / "begun"))
        process = await run_until_begun(worker, tmp_path / "begun")
        engine = await shop.connection.engine()
        await control.apply(engine, JobId(ref.id), Cancel(force=True))
        await eventually(is_gone(process))
        await eventually(lambda: not worker._attempts.held)
    assert (await head(ref)).state is State.CANCELLED


async def test_an_attempt_whose_key_cannot_be_protected_ends_with_its_process(
    tmp_path: Path,
) -> None:
    async with shop, shop.worker() as worker:
        ref = await isolated.sleep.create(str(tmp_path / "begun"))
        process = await run_until_begun(worker, tmp_path / "begun")
        (attempt,) = worker._attempts.running.values()
        attempt.stop(Stop.UNREACHABLE)
        await eventually(lambda: worker.settled == 1)
        assert not lives(process)
        engine = await shop.connection.engine()
        (key,) = await engine.keys("shop", "sleep")
        assert not key.holders
    after = await head(ref)
    assert after.error is not None
    assert (after.state, after.error.code) == (State.RETRY, "lease_lost")


@pytest.mark.parametrize(
    "job", [isolated.sleep, isolated.keep_the_lock], ids=["sleeps", "computes"]
)
async def test_a_stopping_worker_hands_a_stuck_handler_back_and_leaves_no_process(
    tmp_path: Path, job: Job[str, None]
) -> None:
    async with shop:
        async with shop.worker(grace="10ms") as worker:
            ref = await job.create(str(tmp_path / "begun"))
            process = await run_until_begun(worker, tmp_path / "begun")
        assert not lives(process)
        after = await head(ref)
        assert (after.state, after.attempt, after.claims) == (State.RETRY, 0, 1)


async def test_an_attempt_stopped_before_its_process_is_there_has_not_begun() -> None:
    async with shop:
        async with shop.worker(grace="0s") as worker:
            ref = await isolated.where_plain.create("x")
            await eventually(lambda: len(worker._attempts.running) == 1)
        events: list[Event] = await (await shop.connection.engine()).journal(JobId(ref.id))
    assert [event.kind for event in events] == ["created", "started", "retry"]
    assert (await head(ref)).attempt == 0


def test_a_handler_process_does_not_outlive_its_worker(tmp_path: Path, url: str) -> None:
    program = """
        import asyncio, sys
        from tests.worker.isolation import isolated

        async def work(url, path):
            isolated.shop.connection.point_at(url)
            async with isolated.shop, isolated.shop.worker():
                await isolated.keep_the_lock.create(path)
                await asyncio.Event().wait()

        asyncio.run(work(*sys.argv[1:]))
    """
    path = tmp_path / "begun"
    worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), url, str(path)])
    try:
        process = asyncio.run(process_in(path))
        assert lives(process)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        asyncio.run(eventually(lambda: not lives(process) or is_zombie(process)))
    finally:
        worker.kill()
        worker.wait()


def is_zombie(process: int) -> bool:
    """Return whether a process has ended and its parent has not waited for it yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return True
