"""The keeper: one process that owns all servers and files of a test run.

It ends when its owner ends, however that happens, and takes everything along. Servers that one
process asked for end with that process's connection; shared ones live as long as the keeper.
Requests and answers are lines of JSON on a Unix socket, handled one after the other.

Run as `python -m tests.harness.servers.keeper OWNER`; it prints its address and goes into the
background.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.harness.servers import kernel
from tests.harness.servers.account import Account
from tests.harness.servers.cluster import Cluster, Wanted, end_orphans
from tests.harness.servers.folders import Folders
from tests.harness.servers.installation import major_version, programs

#: The first version that has `scram_iterations`, and takes settings for a new data folder.
_ROUNDS: Final = 16
_HOW: Final = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Keeper:
    """Keeps servers; every method that begins with `do_` is a request."""

    def __init__(self) -> None:
        self._account = Account.for_servers()
        self._folders = Folders(self._account)
        self._copies = self._folders.disk / "programs"
        self._copies.mkdir(mode=0o755)
        self._password = secrets.token_hex(16)
        self._clusters: dict[str, Cluster] = {}
        self._shared: dict[int, str] = {}
        self._made = 0

    @property
    def door(self) -> Path:
        """The socket on which requests come in."""
        return self._folders.disk / "keeper"

    def do_pid(self) -> int:
        """Say who we are."""
        return os.getpid()

    def do_share(self, version: int) -> dict[str, Any]:
        """Return the shared server of a version; the first time, start it."""
        if version not in self._shared:
            opened = self.do_open({"version": version})
            self._shared[version] = opened["name"]
        return self._describe(self._shared[version])

    def do_open(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Start a new server."""
        kind = Wanted(**wanted)
        initial = self._initial(kind.version)
        self._made += 1
        name = f"s{self._made}"
        folder = (self._folders.disk if kind.durable else self._folders.memory) / name
        cluster = Cluster(kind, self._programs(kind.version), folder, self._account)
        self._clusters[name] = cluster
        try:
            cluster.fill(initial)
            cluster.open()
        except BaseException:
            self.do_close(name)
            raise
        return self._describe(name)

    def do_start(self, name: str) -> None:
        """Start a stopped or killed server again."""
        self._clusters[name].start()

    def do_stop(self, name: str, how: str) -> None:
        """Stop a server the way an operator does."""
        self._clusters[name].stop(_HOW[how])

    def do_kill(self, name: str) -> None:
        """Kill a postmaster as `kill -9` does, then its backends, which would follow by and by."""
        cluster = self._clusters[name]
        cluster.stop(signal.SIGKILL)
        end_orphans(self._clusters.values())
        cluster.tidy()

    def do_close(self, name: str) -> None:
        """End a server for good and remove its files."""
        cluster = self._clusters.pop(name, None)
        if cluster is None:
            return
        cluster.stop(signal.SIGQUIT)
        end_orphans(self._clusters.values())
        cluster.tidy()
        cluster.remove()

    def close(self) -> None:
        """End everything and remove every file."""
        for name in list(self._clusters):
            self.do_close(name)
        self._folders.remove()

    def _describe(self, name: str) -> dict[str, Any]:
        cluster = self._clusters[name]
        folder, port = str(cluster.folder), cluster.port
        return {"name": name, "folder": folder, "port": port, "password": self._password}

    def _programs(self, version: int) -> Path:
        return programs(version, self._account, self._copies)

    def _initial(self, version: int) -> Path:
        """Return the data folder that all servers of a version begin with; made once."""
        home = self._folders.memory / f"initial-{version}"
        if not home.exists():
            self._account.make_folder(home)
            self._initialise(version, home)
        return home / "data"

    def _initialise(self, version: int, home: Path) -> None:
        word = home / "password"
        word.write_text(self._password)
        word.chmod(0o644)  # the folder around it is closed
        initdb = self._programs(version) / "initdb"
        # One round of hashing keeps connecting fast, where the server can be asked for it.
        fast = ["-c", "scram_iterations=1"] if major_version(initdb.parent) >= _ROUNDS else []
        self._account.run(
            [
                *(initdb, "-D", home / "data", "-U", "postgres"),
                # Whoever may connect may run programs as the server's account: even on loopback
                # a password is asked for.
                *("--auth=password", "--pwfile", word),
                *fast,
                *("-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"),
            ],
            home,
        )


class Desk:
    """Waits for requests and for the end of the owner; nothing else makes it return."""

    def __init__(self, keeper: Keeper, owner: int) -> None:
        self._keeper = keeper
        self._owner = os.pidfd_open(owner)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(keeper.door))
        keeper.door.chmod(0o600)  # before anybody is heard
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._owner, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._opened: dict[socket.socket, set[str]] = {}

    def serve(self) -> None:
        """Answer until the owner is gone or says that it is done."""
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._owner:
                    return
                if key.fileobj is self._listener:
                    self._welcome()
                elif isinstance(key.fileobj, socket.socket) and not self._hear(key.fileobj):
                    return

    def _welcome(self) -> None:
        visitor, _ = self._listener.accept()
        self._opened[visitor] = set()
        self._selector.register(visitor, selectors.EVENT_READ, None)

    def _hear(self, visitor: socket.socket) -> bool:
        """Answer one request; False if it was to end."""
        line = _read_line(visitor)
        if not line:
            self._part(visitor)
            return True
        request = json.loads(line)
        if request["do"] == "end":
            return False
        answer = self._answer(visitor, request)
        with suppress(OSError):
            visitor.sendall(json.dumps(answer).encode() + b"\n")
        return True

    def _answer(self, visitor: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
        verb = request.pop("do")
        try:
            result = getattr(self._keeper, f"do_{verb}")(**request)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            return {"error": f"{type(error).__name__}: {error}"}
        if verb == "open":
            self._opened[visitor].add(result["name"])
        return {"result": result}

    def _part(self, visitor: socket.socket) -> None:
        """End what a process opened that has gone."""
        self._selector.unregister(visitor)
        visitor.close()
        for name in self._opened.pop(visitor):
            self._keeper.do_close(name)


def _read_line(visitor: socket.socket) -> bytes:
    """Read one request; whoever asks waits for the answer, so no more than one is there."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            part = visitor.recv(65536)
        except OSError:
            return b""
        if not part:
            return b""
        line += part
    return line


def _detach(said: str) -> None:
    """Say where we are and let go of our starter's terminal and pipes."""
    print(said, flush=True)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.chdir("/")


def _end(*_: object) -> None:
    raise SystemExit


def main(owner: int) -> None:
    """Keep servers until the owner ends."""
    if os.fork():
        return  # whoever started us waits for this process only
    os.setsid()
    os.umask(0o022)  # copied programs are for another account
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.adopt_orphans()
    keeper = Keeper()
    try:
        desk = Desk(keeper, owner)
        _detach(str(keeper.door))
        desk.serve()
    finally:
        keeper.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
