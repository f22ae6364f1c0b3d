"""A harness that is killed leaves no process behind, stopped or stuck ones included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.harness import ROOT
from tests.harness.faults import campaign, test_campaign
from tests.harness.warden import marked
from trellis.cli import worker_main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

PATIENCE: Final = 60
FAULTS: Final = campaign.__name__.rpartition(".")[0]
CAMPAIGN: Final = test_campaign.__file__
OUTER: Final = "OUTER_TEST"

#: Starts processes that do not end on request, says so, and waits to be killed.
HARNESS: Final = """
import signal, subprocess, sys
from tests.harness.warden import watch
watch()
deaf = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
ends = "print(flush=True); signal.pause()"
nests = "import subprocess; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); "
for program in (deaf + ends, deaf + nests + ends):
    child = subprocess.Popen(
        [sys.executable, "-c", program, deaf + "signal.pause()"],
        stdout=subprocess.PIPE, start_new_session=True,
    )
    child.stdout.readline()
child.send_signal(signal.SIGSTOP)
print("ready", flush=True)
signal.pause()
"""


class Harness:
    """A harness that runs in a process, and all processes below it."""

    def __init__(self, process: subprocess.Popen[str], mark: str) -> None:
        self.process = process
        self._mark = mark

    def processes(self) -> list[int]:
        return [pid for pid in marked(self._mark) if _parent(pid) is not None]

    def children(self) -> list[int]:
        return [pid for pid in self.processes() if pid != self.process.pid]

    def signal(self, number: signal.Signals) -> None:
        """Signal its process group: with xdist those that hand out and those that run tests."""
        os.killpg(self.process.pid, number)


@contextmanager
def harness(folder: Path, *arguments: str) -> Iterator[Harness]:
    """Run a harness whose processes are known by a variable of this test's own."""
    value = str(folder)
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, OUTER: value, "TMPDIR": value},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield Harness(process, f"{OUTER}={value}")
        finally:
            process.kill()


def until(condition: Callable[[], bool]) -> None:
    """Wait for other processes; the deadline only ends a test that failed."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def _parent(pid: int) -> int | None:
    """Return the parent of a process; None if it is gone or only waits to be waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] in "ZX" else int(stat[1])


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_harness_started_ends(tmp_path: Path, number: signal.Signals) -> None:
    with harness(tmp_path, "-c", HARNESS) as killed:
        assert killed.process.stdout
        assert killed.process.stdout.readline() == "ready\n"
        assert len(killed.children()) >= 3  # and the warden, which carries the outer mark only
        killed.signal(number)
        until(lambda: not killed.processes())


CAMPAIGNS: Final = [
    pytest.param(["-m", FAULTS, "--jobs", "100000"], signal.SIGKILL, id="alone"),
    pytest.param(["-m", "pytest", "-n", "2", CAMPAIGN], signal.SIGKILL, id="xdist-killed"),
    pytest.param(["-m", "pytest", "-n", "2", CAMPAIGN], signal.SIGTERM, id="xdist-ended"),
]


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "number"), CAMPAIGNS)
def test_a_killed_campaign_leaves_no_process(
    tmp_path: Path, arguments: list[str], number: signal.Signals
) -> None:
    with harness(tmp_path, *arguments) as killed:

        def works() -> bool:
            programs = [_program(pid) for pid in killed.children()]
            wanted = (worker_main.__name__, f"{FAULTS}.producer")
            return all(any(name in program for program in programs) for name in wanted)

        until(works)
        killed.signal(number)
        until(lambda: not killed.processes())
