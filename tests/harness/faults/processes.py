"""The processes of a campaign: each leads a process group of its own, and only those are touched.

A worker is a guardian and its children in one group. Who is in a group is read from /proc, so that
children are found however they were started; the one that works is the one with a session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.harness import ROOT
from tests.harness.warden import marked


class Place(NamedTuple):
    """Where the processes of a campaign live: their folder, and the database they work on."""

    folder: Path
    url: str


def environment(place: Place) -> dict[str, str]:
    """Return the environment of our processes: nothing of the caller's Trellis, our own folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")}
    folder, url = place
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    return {
        **kept,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "FAULTS_FOLDER": str(folder),
        "TRELLIS_URL": url,
        "TMPDIR": str(scratch),
    }


class Group:
    """A process we started, and whatever it started."""

    def __init__(self, arguments: list[str], place: Place, log: str, *, fed: bool = False) -> None:
        with (place.folder / log).open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=place.folder,
                env=environment(place),
                stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def leader(self) -> int:
        """The process we started."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the leader ended; None while it lives."""
        return self._process.poll()

    def members(self) -> list[int]:
        """Return the living processes of the group, the leader first."""
        found = [pid for pid in _all_pids() if _group_of(pid) == self.leader]
        return sorted(found, key=lambda pid: (pid != self.leader, pid))

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        if self.exit_code is None:
            return False
        try:
            os.killpg(self.leader, 0)
        except ProcessLookupError:
            return True
        return not self.members()  # what is left may be dead and only not waited for

    def has(self, pid: int) -> bool:
        """Tell whether a process lives and is one of the group."""
        return _group_of(pid) == self.leader

    def send(self, number: signal.Signals, pid: int) -> None:
        """Signal one process of the group, if it is still in it."""
        if self.has(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def send_all(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        if self.members():
            with suppress(ProcessLookupError):
                os.killpg(self.leader, number)

    def feed(self, text: str) -> bool:
        """Write to its standard input; False if it no longer listens."""
        stdin = self._process.stdin
        if stdin is None:
            return False
        try:
            stdin.write(text.encode())
            stdin.flush()
        except OSError:
            return False
        return True

    def hang_up(self) -> None:
        """Close its standard input."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def end(self) -> None:
        """End everything at once, stopped or not, and wait for the leader."""
        self.hang_up()
        self.send_all(signal.SIGKILL)
        self._process.wait()


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208 - names suffice


class Queueing:
    """How long processes stood in line for a processor since this was made, in nanoseconds.

    What they do one after the other adds up, and so does our own wait to see the end of it.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._first = {pid: _stood_in_line(pid) for pid in (*pids, os.getpid())}
        self._last = dict(self._first)

    def look(self) -> int:
        """Look again; of a process that is gone, what was seen last counts."""
        for pid, before in self._last.items():
            self._last[pid] = max(before, _stood_in_line(pid))
        return sum(self._last.values()) - sum(self._first.values())


def _stood_in_line(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/schedstat") as file:  # noqa: PTH123 - asked many times a second
            return int(file.read().split()[1])
    except (OSError, IndexError):  # gone, or a kernel that does not count
        return 0


def left_behind(folder: Path) -> list[int]:
    """Return the processes of a campaign that still live, in whatever group they are."""
    return marked(f"FAULTS_FOLDER={folder}")


def is_still(pid: int) -> bool:
    """Tell whether a process is stopped, or gone."""
    return _stat(pid)[0] in "TtZX"


def _group_of(pid: int) -> int | None:
    """Return the group of a process that lives; a zombie does not."""
    state, _, group = _stat(pid)
    return None if state in "ZX" else int(group)


def _stat(pid: int) -> list[str]:
    """Return state, parent and group of a process."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - asked many times a second
            stat = file.read()
    except OSError:
        return ["X", "0", "0"]
    # The name in parentheses may contain anything.
    return stat.rpartition(")")[2].split()[:3]
