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
    """Rings the other processes, and hears them."""

    def __init__(self, path: Path) -> None:
        self._folder = folder_for(path)
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._ear: socket.socket | None = None
        self._own = ""

    @property
    def works(self) -> bool:
        """Whether there is a private place for the sockets."""
        return self._folder is not None

    def ring(self, topics: Iterable[Topic]) -> None:
        """Tell every other process that something happened to these topics."""
        if self._folder is None:
            return
        message = b"".join(_LETTERS[topic] for topic in topics)
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if name != self._own:
                    self._send(self._folder / name, message)

    def _send(self, address: Path, message: bytes) -> None:
        try:
            self._sender.sendto(message, str(address))
        except ConnectionRefusedError:
            # Its owner died without removing it.
            with suppress(OSError):
                address.unlink()
        except OSError:
            # Gone meanwhile, or its buffer is full and so it will wake anyway.
            pass

    def listen(self) -> socket.socket | None:
        """Return the socket on which others ring us."""
        if self._ear is None and self._folder is not None:
            ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            ear.setblocking(False)
            name = f"{os.getpid()}-{secrets.token_hex(4)}"
            try:
                ear.bind(str(self._folder / name))
            except OSError:
                ear.close()
                return None
            self._ear, self._own = ear, name
        return self._ear

    def hear(self, tell: Callable[[set[Topic]], None]) -> None:
        """Read everything that was rung and pass it on."""
        heard: set[Topic] = set()
        with suppress(BlockingIOError):
            while self._ear is not None:
                heard.update(_TOPICS[byte] for byte in self._ear.recv(64) if byte in _TOPICS)
        if heard:
            tell(heard)

    def close(self) -> None:
        """Be silent and deaf."""
        self._sender.close()
        if self._ear is not None and self._folder is not None:
            self._ear.close()
            with suppress(OSError):
                (self._folder / self._own).unlink()
            self._ear = None
