"""Access to engines: found at first use, one per process and event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from trellis import ConfigurationError, EngineError, JobView, Service
from trellis.errors import EngineClosed, UnknownScheme


def test_the_url_is_looked_up_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRELLIS_URL", raising=False)
    service = Service("shop")
    assert service.url == "sqlite:///trellis.db"
    monkeypatch.setenv("TRELLIS_URL", "memory://")
    assert service.url == "memory://"
    assert Service("shop", "sqlite:///own.db").url == "sqlite:///own.db"


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("redis://localhost", UnknownScheme, "does not know redis://"),
        ("jobs.db", ConfigurationError, "is not an engine URL"),
        ("sqlite://jobs.db", ConfigurationError, "has no path to a file"),
    ],
)
async def test_a_url_that_leads_nowhere_is_refused_when_it_is_known(
    monkeypatch: pytest.MonkeyPatch, url: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Service("shop", url)
    job = Service("shop").declare("greet", payload=str, result=str)
    monkeypatch.setenv("TRELLIS_URL", url)
    with pytest.raises(error, match=words):
        await job.create("ada")


def test_jobs_outlive_the_loop_that_made_them(url: str) -> None:
    job = Service("shop", url).declare("greet", payload=str, result=str)

    async def create() -> str:
        return (await job.create("ada")).id

    async def look(job_id: str) -> JobView:
        return await job.ref(job_id).status()

    job_id = asyncio.run(create())
    assert asyncio.run(look(job_id)).id == job_id


async def test_the_engine_is_opened_once_however_many_ask(url: str) -> None:
    async with Service("shop", url) as service:
        engines = await asyncio.gather(*(service.connection.engine() for _ in range(5)))
        assert len({id(engine) for engine in engines}) == 1


async def test_a_closed_service_opens_again_when_it_is_used(url: str) -> None:
    service = Service("shop", url)
    job = service.declare("greet", payload=str, result=str)
    async with service:
        ref = await job.create("ada")
    async with service:
        assert (await ref.status()).id == ref.id


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_an_engine_of_its_own(tmp_path: Path) -> None:
    job = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}").declare(
        "greet", payload=str, result=str
    )

    async def create() -> str:
        return (await job.create("ada")).id

    parents = asyncio.run(create())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, asyncio.run(create()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    childs = os.read(reading, 100).decode()
    os.close(reading)
    os.waitpid(child, 0)

    async def states() -> list[str]:
        return [(await job.ref(each).status()).state for each in (parents, childs)]

    assert asyncio.run(states()) == ["pending", "pending"]


async def test_a_service_entered_beside_its_worker_leaves_the_engine_to_it(url: str) -> None:
    service = Service("shop", url)

    @service.job
    async def double(number: int) -> int:
        return number * 2

    async with service.worker(poll="20ms"):
        engine = await service.connection.engine()
        async with service, service:
            assert await (await double.create(1)).wait("10s") == 2
        assert await service.connection.engine() is engine
        assert await (await double.create(2)).wait("10s") == 4


async def test_the_engine_is_closed_with_the_last_who_holds_it(tmp_path: Path) -> None:
    service = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")
    async with service:
        async with service:
            engine = await service.connection.engine()
        await engine.sessions()
    with pytest.raises(EngineClosed):
        await engine.sessions()


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


async def test_a_worker_that_ends_closes_an_engine_that_no_other_code_has_used(
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
