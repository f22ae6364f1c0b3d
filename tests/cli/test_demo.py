"""`trellis demo` keeps its promises, shows what it does and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import environment, start

HUNG_UP = pytest.param(
    signal.SIGHUP,
    marks=pytest.mark.skipif(
        signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="run under nohup"
    ),
)


def is_alive(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A temporary directory with a short name, as sockets in it need."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        yield Path(folder)


def test_the_demo_keeps_every_promise_and_says_what_goes_on_meanwhile(
    tmp_path: Path, scratch: Path
) -> None:
    process = start(tmp_path, "demo", "--keep", TMPDIR=str(scratch))
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    assert out.count("held  ") == 7
    assert "BROKEN" not in out
    assert re.search(r"worker \d+ is killed; .*\n  \.\.\. 2 s\n", out)
    assert re.search(r"worker \d+ is frozen, .*\n(  \.\.\. \d+ s\n)+  worker \d+ wakes up", out)
    (database,) = re.findall(r"The database is (\S+)\.", out)
    assert Path(database).exists()
    for command in ("trellis doctor --url", "sqlite3", "trellis worker trellis.cli.demo.jobs:app"):
        assert command in out
    assert not any(is_alive(pid) for pid in re.findall(r"worker (\d+) works", out))
    assert list(scratch.iterdir()) == [Path(database).parent]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, HUNG_UP])
def test_a_demo_interrupted_in_its_burst_leaves_no_process_and_no_file(
    tmp_path: Path, scratch: Path, number: signal.Signals
) -> None:
    process = start(tmp_path, "demo", TMPDIR=str(scratch))
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "400 jobs created" in line:
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert "400 results" not in out
    assert process.returncode == 130
    assert err.strip() == "Interrupted."
    pids = re.findall(r"worker (\d+) works", "".join(lines))
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    assert not list(scratch.iterdir())


def on_a_terminal(folder: Path, scratch: Path) -> tuple[int, str]:
    """Run the demo on a terminal of its own; return its exit code and all that it wrote."""
    ours, its = pty.openpty()
    variables = {"TMPDIR": str(scratch), "TERM": "xterm-256color", "COLUMNS": "110"}
    process = subprocess.Popen(
        [sys.executable, "-m", "trellis.cli", "demo"],
        cwd=folder,
        env={**environment(), **variables},
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:
        pass  # how Linux says that the other side has closed
    finally:
        os.close(ours)
    return process.wait(timeout=30), written.decode()


def test_on_a_terminal_titles_are_bold_and_waiting_is_seen(tmp_path: Path, scratch: Path) -> None:
    code, written = on_a_terminal(tmp_path, scratch)
    assert code == 0, written
    assert "\x1b[1mA burst of jobs\x1b[0m" in written
    assert re.search(r"400/400[^/]{0,40}400 results in", written)
    assert re.search(r"is killed; .*[⠀-⣿]\S* 1 s", written, re.DOTALL)
    assert "keep it with: trellis demo --keep (make demo ARGS=--keep)" in written
    assert not list(scratch.iterdir())
