"""Every cause on the engines that a process has inside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest

from tests.harness.embedded_engines import *  # noqa: F403 - fixtures are found by name
from tests.insight.causes import CausesSuite, codes
from tests.insight.real_causes import RealCausesSuite
from trellis import Service
from trellis.engines.sqlite import SqliteEngine
from trellis.insight.causes import Code
from trellis.testing.builders import a_job
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import accept_one


class TestCauses(CausesSuite):
    """Each cause, what it prevents, and the change that ends it."""


async def test_a_file_whose_jobs_were_moved(tmp_path: Path, clock: ManualClock) -> None:
    engine = SqliteEngine(tmp_path / "moved.db", clock=clock)
    await engine.open()
    try:
        record = await accept_one(engine, a_job())
        await engine.exporter().seal("instance", "postgresql://db/jobs")
        assert await codes(engine, record.definition.id) == ["moved"]
    finally:
        await engine.close()


@pytest.fixture(params=["memory", "sqlite"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    path = tmp_path / "jobs.db"
    url = "memory://" if request.param == "memory" else f"sqlite:///{path}"
    async with Service("shop", url) as service:
        yield service


class TestRealCauses(RealCausesSuite):
    """The main causes with real workers."""


def test_every_cause_is_compared_with_what_then_happens() -> None:
    suites = [
        Path(__file__),
        *(Path(__file__).with_name(f"{name}causes.py") for name in ("", "real_")),
    ]
    text = "".join(path.read_text() for path in suites)
    assert [code for code in get_args(Code) if f'"{code}"' not in text] == []
