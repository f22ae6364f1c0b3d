"""The warden: no process of a test run outlives the process that runs the tests.

A harness that is killed cannot end the processes it started, and some of them may be stopped or
stuck. So a harness calls `watch` before it starts anything. That puts a mark into the environment,
which all descendants inherit, and starts a warden. The warden waits for the end of a pipe that only
the harness holds open, then kills every process with the mark.

Keepers of servers start without the mark: they end with their owner (`keeper.py`), after they have
removed servers and files.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_VARIABLE = "TEST_HARNESS"
_SETTLED = 0.1  # seconds; longer than a fork needs to become visible
_watched: list[int] = []  # the end of the pipe that stays open as long as this process lives


def watch() -> None:
    """Let every process that this one starts from now on end with this one, at the latest."""
    if _watched or sys.platform != "linux":
        return
    mark = f"{os.getpid()}-{secrets.token_hex(8)}"
    reading, writing = os.pipe()
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, f"{_VARIABLE}={mark}"],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=unmarked(),
        check=True,
    )
    os.close(reading)
    _watched.append(writing)
    os.environ[_VARIABLE] = mark


def unmarked() -> dict[str, str]:
    """Return the environment for a process that no warden shall end."""
    return {name: value for name, value in os.environ.items() if name != _VARIABLE}


def marked(mark: str) -> list[int]:
    """Return the living processes that were started with `mark`, NAME=value, but not this one."""
    line = mark.encode()
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208 - names suffice
    return [pid for pid in pids if pid != os.getpid() and line in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - asked for every process
            return file.read().split(b"\0")
    except OSError:
        return []


@contextmanager
def _held(pid: int) -> Iterator[int]:
    """Hold on to a process, so that its number cannot become that of another."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _end(mark: str) -> None:
    """Kill until two looks in a row find nothing: a process may start another while we look."""
    quiet = 0
    while quiet < 2:
        found = marked(mark)
        quiet = 0 if found else quiet + 1
        for pid in found:
            with suppress(ProcessLookupError), _held(pid) as handle:
                if mark.encode() in _environment(pid):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        time.sleep(_SETTLED)


def main(mark: str) -> None:
    """Wait in the background for the end of standard input, then end what carries the mark."""
    if os.fork():
        return  # the harness waits for this process only
    os.setsid()  # Ctrl-C and a closed terminal are for the harness
    os.chdir("/")
    while os.read(0, 1):
        pass
    _end(mark)


if __name__ == "__main__":
    main(sys.argv[1])
