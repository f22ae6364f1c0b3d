"""Relative times on the command line count by the engine's clock, not by the operator's."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.conftest import Run
from tests.engines.postgres.clock import ServerClock
from tests.engines.postgres.steps import opened
from tests.engines.postgres.told_time import clock, url
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept, the

__all__ = ["clock", "url"]


def create(url: str) -> list[JobId]:
    async def ask() -> list[JobId]:
        async with opened(url) as engine:
            new = a_job(), a_job(delay=3600 * SECOND), a_job(delay=3600 * SECOND)
            return [each.definition.id for each in await accept(engine, *new)]

    return asyncio.run(ask())


def due_time(url: str, job_id: JobId) -> int:
    async def ask() -> int:
        async with opened(url) as engine:
            return (await the(engine, job_id)).head.run_at

    return asyncio.run(ask())


@pytest.mark.parametrize("ahead", [True, False])
def test_now_and_durations_count_by_the_engines_clock(
    command: Run, url: str, clock: ServerClock, *, ahead: bool
) -> None:
    clock.step_wall("4000d", back=not ahead)  # far from the clock of this machine, either way
    created = clock.now()
    due, later, last = create(url)
    clock.advance("1m")
    for job_id, when in ((due, "now"), (later, "now"), (last, "5m")):
        done = command("jobs", "set", job_id, "--run-at", when, "--url", url)
        assert (done.code, done.err) == (0, "1 job changed.\n")
    assert due_time(url, due) == created
    assert due_time(url, later) == clock.now()
    assert due_time(url, last) == clock.now() + 300 * SECOND
