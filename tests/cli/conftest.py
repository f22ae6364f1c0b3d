"""Running the command, in this process or in a new one, and a database with jobs to run it on."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from tests.cli.shop import make_shop
from trellis.cli.app import run

SOURCE = Path(__file__).parents[2] / "src"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process."""
    monkeypatch.delenv("TRELLIS_URL", raising=False)

    def run_here(*arguments: str) -> Ran:
        code = run(arguments)
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_here


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")}
    return {**kept, "PYTHONPATH": str(SOURCE), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def start(
    folder: Path, *arguments: str, stderr: IO[str] | int = subprocess.PIPE, **variables: str
) -> subprocess.Popen[str]:
    """Start a command line in a new process."""
    return subprocess.Popen(
        [sys.executable, "-m", "trellis", *arguments],
        cwd=folder,
        env={**environment(), **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with a database, and the ids of its jobs by their state."""
    folder = tmp_path_factory.mktemp("shop")
    return folder, make_shop(folder)


@pytest.fixture
def ids(shop: tuple[Path, dict[str, str]]) -> dict[str, str]:
    return shop[1]


@pytest.fixture
def look(command: Run, shop: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command that changes nothing, on the database of the module."""
    monkeypatch.setenv("TRELLIS_URL", f"sqlite:///{shop[0] / 'jobs.db'}")
    return command


@pytest.fixture
def steer(
    command: Run,
    shop: tuple[Path, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run a command that changes jobs, on a copy for one test: making a database takes longer."""
    shutil.copytree(shop[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("TRELLIS_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return command
