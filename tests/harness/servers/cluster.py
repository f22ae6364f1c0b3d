"""One data folder and the server on it, as its keeper sees them.

Everything the keeper ends is a child of its own: the postmaster, and after the postmaster was
killed its backends, which the kernel hands to the keeper. So no process of anybody else can be
hit, not even one that got the number of one of ours.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.harness.servers import kernel
from tests.harness.servers.account import Account

_PATIENCE: Final = 60.0  # also for the recovery after a crash, on a loaded machine
_LOOK_EVERY: Final = 0.005
_TRIES: Final = 5

_ALWAYS: Final = {
    "dynamic_shared_memory_type": "mmap",  # files in the data folder: they go with it
    "logging_collector": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "synchronous_commit": "on",
    "timezone": "UTC",
}
#: A crash of the server still loses nothing; one of the machine loses it all.
_FAST: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
}
_DURABLE: Final = {"fsync": "on", "full_page_writes": "on", "wal_level": "replica"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What kind of server somebody wants."""

    version: int
    durable: bool = False
    tcp: bool = False
    settings: Mapping[str, str] | None = None


class Cluster:
    """A server that can be started, stopped and killed; its folder is its own."""

    def __init__(self, wanted: Wanted, programs: Path, folder: Path, account: Account) -> None:
        self.folder = folder
        self.port = _free_port() if wanted.tcp else 5432
        self._wanted = wanted
        self._programs = programs
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None

    def fill(self, initial: Path) -> None:
        """Copy a freshly made data folder."""
        self._account.make_folder(self.folder)
        self._account.run(["cp", "-R", initial, self._data], self.folder)

    def open(self) -> None:
        """Start for the first time; a port that was taken in between is exchanged for another."""
        for attempt in range(_TRIES):
            try:
                self.start()
            except RuntimeError:
                if not self._wanted.tcp or attempt == _TRIES - 1:
                    raise
                self.port = _free_port()
            else:
                return

    @property
    def postmaster(self) -> int | None:
        """The number of the living server process."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Start, unless it runs, and return when it takes connections."""
        if self.postmaster is not None:
            return
        command: list[str | Path] = [
            self._programs / "postgres",
            "-D",
            self._data,
            *self._options(),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = self._account.start(
                command, self.folder, log, first=kernel.end_with_parent
            )
        try:
            self._wait_until_ready(self._process)
        except RuntimeError:
            self.stop(signal.SIGKILL)
            raise

    def stop(self, how: signal.Signals) -> None:
        """Signal the server, unless it is gone, and wait until it is."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)  # nobody else waits for it: the number is still its own
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def tidy(self) -> None:
        """Remove what a killed server leaves: after this it is as if it had ended by itself."""
        marks = self._marks()
        if len(marks) > 6:  # the seventh line holds key and segment
            kernel.remove_shared_memory(int(marks[6].split()[1]))
        for left in (self._pid_file, *self.folder.glob(".s.PGSQL.*")):
            left.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _pid_file(self) -> Path:
        return self._data / "postmaster.pid"

    def _marks(self) -> list[str]:
        with suppress(FileNotFoundError):
            return self._pid_file.read_text().splitlines()
        return []

    def _options(self) -> list[str]:
        settings = {
            **_ALWAYS,
            **(_DURABLE if self._wanted.durable else _FAST),
            "listen_addresses": "127.0.0.1" if self._wanted.tcp else "",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            **(self._wanted.settings or {}),
        }
        return [f"-c{name}={value}" for name, value in settings.items()]

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _PATIENCE
        # The server writes "ready" as the last line of its file once it takes connections.
        while not self._is_ready(process):
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "log").read_text(errors="replace")
                raise RuntimeError(
                    f"The PostgreSQL server did not start. Its log ends:\n{log[-2000:]}"
                )
            time.sleep(_LOOK_EVERY)

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        marks = self._marks()
        return bool(marks) and marks[0] == str(process.pid) and marks[-1].strip() == "ready"


def end_orphans(clusters: Iterable[Cluster]) -> None:
    """End the backends of killed servers, and wait until each is gone."""
    living = {cluster.postmaster for cluster in clusters}
    while orphans := kernel.children_of(os.getpid()) - living:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            os.waitpid(pid, 0)


def _free_port() -> int:
    """Return a port below those that the system gives to outgoing connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
