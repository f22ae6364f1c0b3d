"""`trellis worker`, in a new process."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Run, start
from trellis import Service
from trellis.cli.worker import _settings
from trellis.cli.worker import worker as worker_command
from trellis.core.durations import micros
from trellis.errors import ConfigurationError

PROGRAM = """
import asyncio, sys
from pathlib import Path
from trellis import Service

app = Service("shop")
other = 3

@app.job
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.job
async def endless(name: str) -> None:
    Path(name).touch()
    await asyncio.Event().wait()
"""


def test_flags_of_intervals_win_over_variables() -> None:
    flags = ["--heartbeat=2s", "--sweep=3s", "--stall-limit=9m", "--keep-audit=30d"]
    context = worker_command.make_context("worker", flags)
    settings = _settings({"TRELLIS_HEARTBEAT": "5s", "TRELLIS_LEASE": "20s"}, context.params)
    intervals = (settings.heartbeat, settings.sweep, settings.stall_limit, settings.keep_audit)
    assert intervals == tuple(map(micros, ("2s", "3s", "9m", "30d")))
    with pytest.raises(ConfigurationError, match="too rare for a lease of 20s"):
        _settings({"TRELLIS_LEASE": "20s"}, {**context.params, "heartbeat": "10s"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("app = 1 / 0")
    (tmp_path / "needy.py").write_text("import no_such_package_at_all")
    return tmp_path


@contextmanager
def worker(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = start(folder, "worker", *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"The worker never logged {words!r}")


@pytest.fixture
def shop(folder: Path) -> Service:
    return Service("shop", f"sqlite:///{folder / 'trellis.db'}")


def test_a_worker_runs_jobs_until_it_is_asked_to_stop(folder: Path, shop: Service) -> None:
    greet = shop.declare("greet", payload=str, result=str)

    async def ask() -> str:
        return await (await greet.create("world")).wait("20s")

    with worker(folder, "shop:app") as process:
        wait_for_line(process, "Working on shop/greet")
        assert asyncio.run(ask()) == "Hello, world!"
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert "Attempts settled: 1" in err


def test_the_example_of_the_readme_works_with_a_worker_of_its_own(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "hello.py"
    (tmp_path / "hello.py").write_text(example.read_text())
    hello = Service("hello", f"sqlite:///{tmp_path / 'trellis.db'}")
    greet = hello.declare("greet", payload=str, result=str)

    async def ask() -> str:
        return await (await greet.create("reader")).wait("20s")

    with worker(tmp_path, "hello:app") as process:
        wait_for_line(process, "Working on hello/greet")
        assert asyncio.run(ask()) == "Hello, reader!"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shop", "does not name a service. Write the module and its variable, like shop:app."),
        ("", "'' does not name a service. Write the module and its variable, like hello:app."),
        (" , ", "does not name a service"),
        ("shop.app", "does not name a service. Write the module and its variable, like shop:app."),
        ("shop.py", "does not name a service. Write the module and its variable, like shop:app."),
        ("./shop.py", "does not name a service. Write the module and its variable, like shop:app."),
        ("a/b.py", "does not name a service. Write the module and its variable, like a.b:app."),
        ("deep.jobs", "does not name a service. Write the module and its variable, like deep.jobs"),
        (":other", "does not name a service. Write the module and its variable, like hello:other."),
        ("nowhere:app", "There is no module 'nowhere' here"),
        ("shop:missing", "shop has no such variable"),
        ("shop:other", "shop has a int there"),
        ("broken:app", "Importing 'broken' failed with ZeroDivisionError"),
        (
            "nowhere.py:app",
            "There is no module 'nowhere' here. Run this in the folder that",
        ),
        ("nowhere.py:app", "has nowhere.py, or put"),
        (
            "./src/shop.py:app",
            "is a path, and a service is imported from a module. Write src.shop:app",
        ),
        ("needy:app", "it needs 'no_such_package_at_all', which is not installed"),
    ],
)
def test_a_service_that_cannot_be_found_ends_with_2_and_a_sentence(
    command: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    ran = command("worker", name)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


def test_with_debug_a_worker_process_shows_its_traceback(
    command: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    ran = command("worker", "broken:app", "--debug")
    assert (ran.code, "ZeroDivisionError" in ran.err) == (2, True)
    assert "Traceback" in ran.err


def test_a_service_may_be_named_by_its_file(folder: Path) -> None:
    with worker(folder, "shop.py:app") as process:
        wait_for_line(process, "Working on shop/greet")


def test_a_wrong_url_of_the_environment_is_named_there(
    command: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("TRELLIS_URL", "jobs.db")
    for arguments in (["worker", "shop:app"], ["doctor"], ["migrate"]):
        ran = command(*arguments)
        assert (ran.code, ran.err.startswith("TRELLIS_URL: 'jobs.db' is not")) == (2, True)


def test_a_separate_worker_on_a_memory_engine_is_refused(
    command: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    ran = command("worker", "shop:app", "--url", "memory://")
    assert ran.code == 2
    assert "would never see one" in ran.err


def test_a_lease_that_is_no_span_is_refused(
    command: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    ran = command("worker", "shop:app", "--lease", "long")
    assert (ran.code, "'long' is not a duration" in ran.err) == (2, True)
