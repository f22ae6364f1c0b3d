"""What is measured on NATS is what happened: by the server's count and by the handlers' marks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.jetstream import engine, measure, projecting
from bench.jetstream.measure import Server
from bench.jetstream.systems import BARE, TRELLIS, System
from bench.rows import Report
from tests.harness.servers.nats import nats_server

JOBS = 40


@pytest.mark.long
@pytest.mark.parametrize("system", [BARE, TRELLIS], ids=["bare", "trellis"])
def test_a_drain_counts_what_the_server_has_as_completed(tmp_path: Path, system: System) -> None:
    with (
        nats_server(tmp_path) as process,
        Server(process.url) as server,
        server.fresh(system) as folder,
    ):
        drained = measure.drain(server, system, folder, JOBS)
        assert drained.rate > 0
        assert server.count(system, "started") == JOBS
        assert len(measure.read_marks(folder, "start")) == JOBS
        assert not server.has_left(system)


@pytest.mark.long
def test_finished_jobs_are_projected_and_single_calls_are_timed(tmp_path: Path) -> None:
    with (
        nats_server(tmp_path) as process,
        Server(process.url) as server,
        server.fresh(TRELLIS) as folder,
    ):
        url = TRELLIS.url(server.url)
        asyncio.run(engine.make_finished(url, JOBS))
        assert server.count(TRELLIS, "completed") == JOBS
        assert projecting.project(server, TRELLIS, folder) > 0

        async def time_calls() -> dict[str, list[float]]:
            async with engine.opened(url) as opened:
                known = await engine.fill(opened, 1)
            return await engine.timed(url, known, 3)

        took = asyncio.run(time_calls())
        assert {name: len(calls) for name, calls in took.items()} == {
            "create": 3, "claim": 3, "load new": 3, "load": 3, "bare read": 3,
        }  # fmt: skip
        assert server.count(TRELLIS, "created") == JOBS + 1


def test_a_ratio_is_taken_within_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    for ours, theirs in ((10.0, 20.0), (60.0, 100.0), (9.0, 10.0)):
        report.add("ours", ours)
        report.add("theirs", theirs)
    assert report.ratio("ours", "theirs") == 0.6
    report.judge("enough", 0.6, holds=True)
    assert report.verdicts == ["PASS  enough: 0.6"]
    assert "PASS" in capsys.readouterr().out
