"""Locks outside of handlers: the same locks, held by a program while its block runs."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.worker.faulty import eventually
from trellis import ActiveJob, LockBusy, LockLost, Operator, Service
from trellis.engines.values import LockHolder
from trellis.errors import CalledFromLoop, ConfigurationError


async def holder(service: Service, name: str) -> LockHolder | None:
    engine = await service.connection.engine()
    return next((each for each in await engine.locks() if each.name == name), None)


async def test_a_program_excludes_handlers_while_its_block_runs(service: Service) -> None:
    @service.job
    async def publish(job: ActiveJob[int]) -> str:
        try:
            async with job.lock("edition", job.payload, wait=0):
                return "published"
        except LockBusy as busy:
            return str(busy)

    async with service.worker():
        async with service.lock("edition", 7) as lock:
            assert (lock.name, lock.is_lost) == ("edition/7", False)
            text = await (await publish.create(7)).wait("20s")
            assert text.startswith("Lock 'edition/7' is not free: process ")
            assert await (await publish.create(8)).wait("20s") == "published"
        assert await holder(service, "edition/7") is None
        assert await (await publish.create(7)).wait("20s") == "published"


async def test_a_program_waits_for_a_handler(service: Service) -> None:
    inside, leave = asyncio.Event(), asyncio.Event()

    @service.job
    async def publish(job: ActiveJob[None]) -> None:
        async with job.lock("edition"):
            inside.set()
            await leave.wait()

    async with service.worker():
        ref = await publish.create()
        await inside.wait()
        with pytest.raises(LockBusy, match=rf"job {ref.id} on worker .*Wait longer with wait=\.$"):
            async with service.lock("edition", wait="10ms"):
                pytest.fail("the handler has it")
        leave.set()
        async with service.lock("edition", wait="20s"):
            pass


def test_threads_of_a_program_exclude_each_other(url: str) -> None:
    service = Service("shop", url)
    inside: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            with service.lock(("b",), ("a", 1)):
                inside.append(number)
                assert inside == [number]
                inside.clear()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    with service:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def test_an_exception_in_the_block_frees_the_lock(service: Service) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with service.lock("edition"):
            raise KeyError("mine")
    assert await holder(service, "edition") is None


async def hold_until_lost(service: Service, error: Exception | None = None) -> None:
    engine = await service.connection.engine()
    async with service.lock("edition") as lock:
        held = await holder(service, "edition")
        assert held is not None
        await engine.close_session(held.session)
        await eventually(lambda: lock.is_lost)
        with pytest.raises(LockLost):
            lock.raise_if_lost()
        if error is not None:
            raise error


async def test_the_end_of_a_block_whose_lock_was_lost_raises(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_LEASE", "1s")
    with pytest.raises(LockLost, match="Lock 'edition' was lost") as lost:
        await hold_until_lost(service)
    assert lost.value.name == "edition"


async def test_a_lost_lock_does_not_hide_the_exception_of_the_block(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_LEASE", "1s")
    with pytest.raises(KeyError, match="mine"):
        await hold_until_lost(service, KeyError("mine"))


async def test_a_lock_is_kept_for_longer_than_a_lease(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_LEASE", "1s")
    engine = await service.connection.engine()

    async def is_renewed() -> bool:
        (session,) = await engine.sessions()
        return session.renewed_at - session.opened_at > session.lease and not session.lapsed

    async with service.lock("edition"):
        await eventually(is_renewed)
        assert await holder(service, "edition") is not None


async def test_the_holder_of_a_lock_is_not_listed_as_a_worker(service: Service) -> None:
    engine = await service.connection.engine()
    async with service.lock("edition"):
        assert await Operator(engine, actor="test").workers(ended=True) == []
        assert len(await engine.sessions()) == 1
    assert [each.ended_at is None for each in await engine.sessions()] == [False]


async def test_taking_a_lock_twice_is_refused(service: Service) -> None:
    with pytest.raises(ConfigurationError, match="already holds lock 'edition'"):
        async with service.lock("edition"), service.lock("edition"):
            pytest.fail("it waits for itself")


async def test_a_plain_with_on_a_loop_is_refused(service: Service) -> None:
    with pytest.raises(CalledFromLoop, match=r"Write: async with service\.lock\('edition'\)"):
        service.lock("edition").__enter__()


_HOLDER = """
import sys, time
from trellis import Service
with Service("shop", sys.argv[1]).lock("edition"):
    print("held", flush=True)
    time.sleep(600)
"""


async def test_the_lock_of_a_killed_program_is_free_after_its_lease(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOLDER, url,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "TRELLIS_LEASE": "1s"},
    )  # fmt: skip
    assert program.stdout is not None
    assert await program.stdout.readline() == b"held\n"
    async with Service("shop", url) as service:
        with pytest.raises(LockBusy, match=f"-{program.pid} has held it since"):
            async with service.lock("edition", wait=0):
                pytest.fail("the program has it")
        program.kill()
        await program.wait()
        async with service.lock("edition", wait="20s"):
            pass


async def test_an_engine_that_cannot_be_opened_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="gopher"):
        async with Service("shop", "gopher://x").lock("edition"):
            pytest.fail("there is no engine")
