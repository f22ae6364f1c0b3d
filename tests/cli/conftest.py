"""Running the command, in this process and as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from trellis.cli.app import run

SOURCE = Path(__file__).parents[2] / "src"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line here."""
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
    """Start a command line as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "trellis.cli", *arguments],
        cwd=folder,
        env={**environment(), **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )
