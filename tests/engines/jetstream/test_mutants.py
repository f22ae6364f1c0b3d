"""The tests can fail: they catch each deliberate fault of the JetStream engine."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.conformance.catches import Given, check_caught, given
from tests.engines.jetstream.conftest import deploy
from tests.engines.jetstream.manual import ServedEngine
from tests.engines.jetstream.mutants import MUTANTS
from tests.engines.jetstream.mutated import VARIABLE
from trellis.admin.runtime import AdminRuntime
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.sqlite import SqliteEngine
from trellis.testing import ManualClock

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if MUTANTS[each].is_by_suite])
async def test_the_suite_catches_the_mutant(
    mutant: str, link: Link, nats_url: str, tmp_path: Path
) -> None:
    numbers = count(1)

    @asynccontextmanager
    async def opening() -> AsyncIterator[Given]:
        subjects, clock = Subjects("t" + secrets.token_hex(6)), ManualClock()
        tables = SqliteEngine(tmp_path / f"projection-{next(numbers)}.db", clock=clock)

        def make() -> ServedEngine:
            return ServedEngine(nats_url, prefix=subjects.prefix, clock=clock)

        await tables.open()
        try:
            async with (
                deploy(link, subjects),
                AdminRuntime(Link([nats_url]), subjects, tables),
                given(make, clock, object()) as opened,
            ):
                yield opened
        finally:
            await tables.close()

    fault = MUTANTS[mutant]
    await check_caught(fault.mutate, fault.caught_by, opening)


async def _run(test: str, mutant: str = "") -> int:
    """Run a test in a process of its own, broken by a mutant; return how many of it failed."""
    plugin = ["-p", "tests.engines.jetstream.mutated"] if mutant else []
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "-n", "0", *plugin, test,
        cwd=ROOT, env=os.environ | {VARIABLE: mutant}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await run.communicate()
    assert run.returncode in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}, said.decode()
    return run.returncode or 0


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if not MUTANTS[each].is_by_suite])
async def test_a_test_of_the_engine_catches_the_mutant(mutant: str) -> None:
    test = MUTANTS[mutant].caught_by
    assert await _run(test, mutant) == pytest.ExitCode.TESTS_FAILED
    assert await _run(test) == pytest.ExitCode.OK
