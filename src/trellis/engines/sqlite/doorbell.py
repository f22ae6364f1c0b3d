"""Waking other processes that use the same file: a datagram after a commit.

Every engine that watches binds a Unix datagram socket in a folder named after the database; every
commit sends one byte per topic to each of them. Lost rings cost nothing but time: the watcher also
asks SQLite a few times a second whether somebody else has written (`data_version`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from trellis.engines.values import Topic

_LETTERS: Final[dict[Topic, bytes]] = {"ready": b"r", "settled": b"s"}
_TOPICS: Final = {letter[0]: topic for topic, letter in _LETTERS.items()}


def folder_for(path: Path) -> Path | None:
    """Return the folder of a database's doorbells; None if there is no private place for it."""
    # Socket paths are limited to about 100 bytes, so the place is short and the name a hash.
    parent = Path(tempfile.gettempdir()) / f"trellis-{os.getuid()}"
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    folder = parent / name
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = parent.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    return folder if private and not facts.st_mode & 0o077 else None


class Doorbell:
    """Rings the other processes that watch a database."""

    def __init__(self, path: Path) -> None:
        self.folder = folder_for(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._own = f"{os.getpid()}-"

    def ring(self, topics: Iterable[Topic]) -> None:
        """Tell every other process that something happened to these topics."""
        if self.folder is None:
            return
        message = b"".join(_LETTERS[topic] for topic in topics)
        with suppress(OSError):
            for name in os.listdir(self.folder):  # noqa: PTH208 - after every commit; half the cost
                if not name.startswith(self._own):
                    self._send(self.folder / name, message)

    def _send(self, address: Path, message: bytes) -> None:
        try:
            self._socket.sendto(message, str(address))
        except ConnectionRefusedError:
            # Its owner died without removing it.
            with suppress(OSError):
                address.unlink()
        except OSError:
            # Gone meanwhile, or its buffer is full and so it will wake anyway.
            pass

    def close(self) -> None:
        """Be silent from now on; the last one to leave removes the folder."""
        self._socket.close()
        if self.folder is not None:
            with suppress(OSError):
                self.folder.rmdir()


class Ear:
    """Hears the doorbells of other processes, for one watch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)  # somebody who left may just have removed it
        self._address = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        try:
            self.socket.bind(str(self._address))
        except OSError:
            self.socket.close()
            raise

    def hear(self, tell: Callable[[set[Topic]], None]) -> None:
        """Read everything that was rung and pass it on."""
        heard: set[Topic] = set()
        with suppress(BlockingIOError):
            while True:
                heard.update(_TOPICS[byte] for byte in self.socket.recv(64) if byte in _TOPICS)
        if heard:
            tell(heard)

    def close(self) -> None:
        """Be deaf, and leave no name behind."""
        self.socket.close()
        with suppress(OSError):
            self._address.unlink()
