"""Whoever is killed: servers end with the process that asked for them, and no file stays."""

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

import psycopg
import pytest

from tests.harness import ROOT
from tests.harness.servers import installation
from tests.harness.servers.address import Address
from tests.harness.servers.kept import Line, start_keeper
from tests.harness.servers.kernel import children_of
from tests.harness.servers.postgres import Server, shared
from tests.harness.servers.run import line_of_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers of our own need Linux")

PATIENCE: Final = 60

#: Asks for a server of its own, says where it is, and waits to be killed.
LONER: Final = """
from tests.harness.servers.kept import Line
from tests.harness.servers.postgres import Server
server = Server(Line(input()), 18)
print(server.url(), flush=True)
input()
"""

#: Stands for the process that hands out tests: its two children share a server.
CONTROLLER: Final = """
import subprocess, sys
child = '''
import sys
from pathlib import Path
from tests.harness.servers.postgres import shared
from tests.harness.servers.run import line_of_run
line = line_of_run(Path(sys.argv[1]) / sys.argv[2])
print(shared(line, 18).url(), flush=True)
'''
begun = [
    subprocess.Popen([sys.executable, "-c", child, sys.argv[1], name], stdout=subprocess.PIPE)
    for name in ("gw0", "gw1")
]
urls = {one.communicate()[0].decode().strip() for one in begun}
print(*urls, flush=True)
input()
"""


@contextmanager
def program(text: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], bool]) -> None:
    """Wait for another process to do something; the deadline only ends a test that failed."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def folder_of(url: str) -> Path:
    return Path(Address.of(url).host)


def postmaster_of(url: str) -> int:
    return int((folder_of(url) / "data" / "postmaster.pid").read_text().split()[0])


def is_gone(pid: int) -> bool:
    """Tell whether a process is dead, waited for or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def test_a_server_ends_with_the_process_that_asked_for_it(postgres_run: Line) -> None:
    with program(LONER) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{postgres_run.door}\n")
        process.stdin.flush()
        url = process.stdout.readline().strip()
        postmaster = postmaster_of(url)
        backends = children_of(postmaster)
        assert backends
        process.kill()
        until(lambda: not folder_of(url).exists())
        assert all(is_gone(pid) for pid in (postmaster, *backends))
    assert not is_gone(postgres_run.ask("pid"))


def test_shared_servers_outlive_workers_and_end_with_the_run(tmp_path: Path) -> None:
    with program(CONTROLLER, str(tmp_path), PYTEST_XDIST_WORKER="gw") as controller:
        assert controller.stdout
        urls = controller.stdout.readline().split()
        assert len(urls) == 1  # both got the same; they have ended, it has not
        psycopg.connect(urls[0]).close()
        keeper = Path((tmp_path / "postgres-keeper").read_text())
        postmaster = postmaster_of(urls[0])
        controller.kill()
        until(lambda: not folder_of(urls[0]).exists() and not keeper.parent.exists())
        assert is_gone(postmaster)


def test_a_keeper_that_was_killed_is_replaced_and_swept_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    first = line_of_run(tmp_path)
    url = shared(first, 18).url()
    left = Path(first.door).parent
    postmaster = postmaster_of(url)
    os.kill(first.ask("pid"), signal.SIGKILL)
    until(lambda: is_gone(postmaster))
    first.close()
    second = line_of_run(tmp_path)
    try:
        assert not left.exists()
        assert not folder_of(url).exists()
        assert not is_gone(second.ask("pid"))
    finally:
        second.end_keeper()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's servers run as somebody else")
def test_programs_that_the_servers_cannot_reach_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    package = installation.package()
    for name in (package.name, f"{package.name}.libs"):
        (private / name).symlink_to(package.with_name(name))
    monkeypatch.setenv("PYTHONPATH", str(private))
    line = Line(start_keeper(os.getpid()))
    try:
        server = Server(line, 18)
        program = Path(f"/proc/{postmaster_of(server.url())}/exe").readlink()
        assert program.is_relative_to(Path(line.door).parent)
        assert private.stat().st_mode & 0o777 == 0o700
    finally:
        line.end_keeper()
