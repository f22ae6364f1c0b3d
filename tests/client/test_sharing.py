"""One engine and several who use it: loops, workers, threads, processes."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from trellis import EngineError, Service
from trellis.errors import EngineClosed


def doubling(url: str | None) -> Service:
    service = Service("shop", url)

    @service.job
    async def double(number: int) -> int:
        return number * 2

    return service


async def test_a_loop_that_ends_does_not_end_the_hints_of_the_others() -> None:
    service = doubling("memory://")
    job = service.find("double")

    async def come_and_go() -> None:
        async with service:
            await job.create(1)

    async with service:
        hints = (await service.connection.engine()).watch(("ready",))
        of_the_other_loop = asyncio.ensure_future(anext(hints))
        await asyncio.sleep(0)
        await asyncio.to_thread(asyncio.run, come_and_go())
        assert await asyncio.wait_for(of_the_other_loop, 10) == "ready"
        of_this_loop = asyncio.ensure_future(anext(hints))
        await asyncio.sleep(0)
        await job.create(2)
        assert await asyncio.wait_for(of_this_loop, 10) == "ready"


async def test_a_worker_that_ends_leaves_the_engine_to_those_who_use_it(url: str) -> None:
    service = doubling(url)
    job = service.find("double")
    other = service.declare("other", payload=int, result=int)
    waiting = asyncio.create_task((await other.create(0)).wait())
    async with service.worker(poll="20ms"):
        engine = await service.connection.engine()
        assert await (await job.create(1)).wait("10s") == 2
    assert not waiting.done()
    assert await service.connection.engine() is engine
    await engine.sessions()
    await service.connection.close()
    with pytest.raises(EngineClosed):
        await waiting


async def test_a_worker_that_ends_closes_an_engine_that_nobody_else_has_used(
    tmp_path: Path,
) -> None:
    service = doubling(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with service.connection.borrowed() as (engine, _), service.worker():
        await engine.sessions()
    with pytest.raises(EngineClosed):
        await engine.sessions()


def test_threads_that_meet_at_the_first_use_share_one_memory() -> None:
    service = doubling("memory://")
    barrier = threading.Barrier(8)
    engines: list[object] = []

    def use() -> None:
        barrier.wait(10)
        engines.append(asyncio.run(service.connection.engine()))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(engine) for engine in engines}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_inherit_jobs_that_live_in_its_parent() -> None:
    service = doubling("memory://")
    ref = service.find("double").create_sync(1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ref.status_sync()
        except Exception as error:  # noqa: BLE001 - only the exit code can tell
            code = 0 if type(error).__name__ == "JobNotFound" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ref.status_sync().id == ref.id


async def test_the_url_comes_from_the_settings_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRELLIS_URL", raising=False)
    (tmp_path / "trellis.toml").write_text('url = "sqlite:////nowhere/at/all.db"\n')
    service = doubling(None)
    assert service.url == "sqlite:////nowhere/at/all.db"
    with pytest.raises(EngineError, match="/nowhere/at/all"):
        await service.find("double").create(1)
