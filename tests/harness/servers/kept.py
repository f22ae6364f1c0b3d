"""The other end of the keeper's socket: how a test process asks for servers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any, Final, Self

from tests.harness import ROOT
from tests.harness.warden import unmarked

_PATIENCE: Final = 180.0


class KeeperGone(RuntimeError):
    """The keeper does not answer: it was killed, or its owner has ended."""


class Line:
    """A connection to a keeper; the servers that were opened over it end with it."""

    def __init__(self, door: str) -> None:
        self.door = door
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE)
        try:
            self._socket.connect(door)
        except OSError as error:
            self._socket.close()
            raise KeeperGone(f"No keeper listens at {door}.") from error
        self._answers = self._socket.makefile("rb")

    @classmethod
    def of_own(cls) -> Self:
        """Return a line to a new keeper that ends with this process."""
        return cls(start_keeper(os.getpid()))

    def ask(self, verb: str, **details: Any) -> Any:  # noqa: ANN401 - what JSON holds
        """Send one request and wait for its answer."""
        with self._lock:
            try:
                self._socket.sendall(json.dumps({"do": verb, **details}).encode() + b"\n")
                line = self._answers.readline()
            except OSError as error:
                raise KeeperGone(f"The keeper at {self.door} is gone.") from error
        if not line:
            raise KeeperGone(f"The keeper at {self.door} is gone.")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def end_keeper(self) -> None:
        """Tell the keeper to end, and wait until it has removed everything."""
        try:
            with self._lock:
                self._socket.sendall(b'{"do": "end"}\n')
                self._answers.read()  # its end closes the connection
        finally:
            self.close()

    def close(self) -> None:
        """Hang up."""
        self._answers.close()
        self._socket.close()


def start_keeper(owner: int) -> str:
    """Start a keeper that ends with the process `owner`; return where it listens."""
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.keeper", str(owner)],
        cwd=ROOT,
        env=unmarked(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    door = done.stdout.strip()
    if not door:
        raise RuntimeError(f"The keeper of the test servers did not start:\n{done.stderr}")
    return door
