"""`trellis jobs serve` and `rebuild` as programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trellis.cli.app import run
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.url import deployment_of
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import JobFilter
from trellis.errors import ConfigurationError
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept


@contextmanager
def program(url: str, path: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of the projection, with the path in the variable."""
    environment = {**os.environ, "NO_COLOR": "1", "TRELLIS_JOBS_DB_PATH": str(path)}
    with subprocess.Popen(
        [sys.executable, "-m", "trellis", "jobs", command, "--url", url],
        stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def url(nats_url: str, subjects: Subjects) -> str:
    return f"{nats_url}?prefix={subjects.prefix}"


@pytest.mark.long
async def test_it_answers_ends_on_a_signal_and_is_made_again(
    url: str, engine: Engine, link: Link, subjects: Subjects, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.sqlite"
    await accept(engine, a_job(), a_job())
    with program(url, path, "serve") as server:
        assert server.stderr is not None
        assert "Serving the jobs" in server.stderr.readline()
        assert (await engine.count(JobFilter())).total == 2
        answer = await link.ask(subjects.rpc("List"), b'{"limit": 9}', 20)
        assert json.loads(answer.data)["count"] == 2
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    await accept(engine, a_job())
    tables = SqliteEngine(path)
    await tables.open()
    assert (await tables.count(JobFilter())).total == 2
    await tables.projection().erase()
    with program(url, path, "rebuild") as rebuilding:
        assert rebuilding.wait(30) == 0
        assert rebuilding.stderr is not None
        assert "The projection has all" in rebuilding.stderr.read()
    assert (await tables.count(JobFilter())).total == 3
    await tables.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///jobs.db", "another store"),
        ("nats://host?prefix=a.b", "prefix="),
        ("nats://host?x=1", "does not know: x"),
    ],
)
def test_a_url_that_names_no_deployment_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        deployment_of(url)


def test_a_missing_folder_is_named(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none" / "jobs.sqlite"
    assert run(("jobs", "serve", "--url", url, "--projection", str(missing))) == 2
    assert "There is no folder" in " ".join(capfd.readouterr().err.split())
