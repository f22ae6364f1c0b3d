"""Every cause on the engines that a process has inside."""

from __future__ import annotations

from pathlib import Path

from tests.harness.embedded_engines import *  # noqa: F403 - fixtures are found by name
from tests.insight.causes import CausesSuite, codes
from trellis.engines.sqlite import SqliteEngine
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
