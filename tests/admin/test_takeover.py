"""Several runtimes on one projection: each page is stored once, also when one of them is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.harness.projections import differences
from trellis.admin.opening import admin_runtime
from trellis.admin.runtime import AdminRuntime
from trellis.core.commands import Complete
from trellis.core.policy import KeyPolicy
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.testing.builders import a_demand, a_job, a_keyed_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept, claim, settle

pytestmark = pytest.mark.long
RULE = KeyPolicy("k", active=2, queued=None)


@pytest.fixture
def url(nats_url: str, subjects: Subjects) -> str:
    return f"{nats_url}?prefix={subjects.prefix}"


async def _lives(engine: Engine, rounds: int) -> None:
    """Store jobs, some of which have ended or wait for a key."""
    session = await a_session(engine)
    for _ in range(rounds):
        await accept(engine, *(a_job() for _ in range(20)))
        await accept(engine, *(a_keyed_job("k", RULE) for _ in range(5)))
        for each in await claim(engine, session, a_demand()):
            await settle(engine, each, Complete(fence_of(each), "null"))


@asynccontextmanager
async def _program(
    url: str, path: Path, failpoint: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `trellis jobs serve`, which kills itself at a failpoint."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trellis", "jobs", "serve", "--url", url, "--projection", str(path),
        env={**os.environ, "TRELLIS_FAILPOINT": failpoint},
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.wait()


async def _caught_up(runtime: AdminRuntime) -> None:
    async with asyncio.timeout(60):
        while not await runtime.answers.catch_up():
            pass


async def _same_as_a_new_one(url: str, path: Path) -> None:
    fresh = path.with_name("fresh.sqlite")
    for each in (path, fresh):
        async with admin_runtime(url, str(each), changes=False) as runtime:
            await _caught_up(runtime)
    assert await asyncio.to_thread(differences, path, fresh) == []


@pytest.mark.parametrize("statement", [25, 40, 55])
async def test_another_runtime_takes_over_when_one_is_killed_within_a_page(
    url: str, engine: Engine, tmp_path: Path, statement: int
) -> None:
    path = tmp_path / "jobs.sqlite"
    await _lives(engine, 8)
    async with _program(url, path, f"sqlite.statement:{statement}") as killed:
        async with asyncio.timeout(60):
            assert await killed.wait() == -signal.SIGKILL
    await _same_as_a_new_one(url, path)


async def test_two_programs_and_a_killed_one_store_everything_once(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.sqlite"
    async with admin_runtime(url, str(path), changes=False) as staying:
        async with (
            _program(url, path, "none") as other,
            _program(url, path, "sqlite.statement:60") as killed,
        ):
            async with asyncio.timeout(120):
                while killed.returncode is None:
                    await _lives(engine, 1)
            assert other.returncode is None
        await _lives(engine, 1)
        await _caught_up(staying)
    await _same_as_a_new_one(url, path)
