"""Hints about changes: to watchers in this process at once, to other processes by a datagram.

Every engine that watches binds a Unix datagram socket in a folder named after the database. After a
commit the writer sends one byte per topic to each of them. A lost datagram only costs time: each
watcher also asks SQLite four times a second whether another connection has written
(`data_version`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from trellis.engines.hints import Hints
from trellis.engines.values import Topic
from trellis.errors import TrellisError

_POLL_SECONDS: Final = 0.25
#: Datagrams to other processes are at least this far apart.
SEND_SECONDS: Final = 0.003
_LETTERS: Final[dict[Topic, bytes]] = {"ready": b"r", "settled": b"s", "asked": b"a"}
_ALL: Final = frozenset(_LETTERS)
_TOPICS: Final = {letter[0]: topic for topic, letter in _LETTERS.items()}


class Wakeup:
    """The hints of one engine: published here, sent to and received from other processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hints = Hints()
        self._sender: Sender | None = None
        self._data_version: Callable[[], Awaitable[int]] | None = None
        self._unsent: set[Topic] = set()
        self._sent_at = 0.0

    @property
    def reaches_others(self) -> bool:
        """Whether other processes can be woken at once."""
        return self._sender is not None and self._sender.folder is not None

    def open(self, data_version: Callable[[], Awaitable[int]]) -> None:
        """Begin; `data_version` changes when another connection has written."""
        self._hints.reopen()
        self._sender = Sender(self._path)
        self._data_version = data_version

    def close(self) -> None:
        """End every watch."""
        self._hints.close()
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def publish(self, topics: set[Topic]) -> None:
        """Pass on what a commit of this process changed. Called on the writer thread.

        Watchers in this process get it at once, other processes at most every few milliseconds,
        because a datagram costs system calls; `flush` sends the rest.
        """
        self._hints.publish(topics)
        self._unsent |= topics
        if time.monotonic() - self._sent_at >= SEND_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send the topics that other processes have not received yet."""
        sender = self._sender
        if sender is not None and self._unsent:
            sender.send(self._unsent)
        self._unsent = set()
        self._sent_at = time.monotonic()

    @property
    def is_flushed(self) -> bool:
        """Whether everything was sent to other processes."""
        return not self._unsent

    async def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints until closed."""
        loop = asyncio.get_running_loop()
        receiver = self._receiver()
        if receiver is not None:
            loop.add_reader(receiver.socket, receiver.receive, self._hints.publish)
        poll = asyncio.create_task(self._poll())
        try:
            async for topic in self._hints.watch(topics):
                yield topic
        finally:
            if receiver is not None:
                loop.remove_reader(receiver.socket)
                receiver.close()
            poll.cancel()
            with suppress(asyncio.CancelledError):
                await poll

    def _receiver(self) -> Receiver | None:
        folder = self._sender.folder if self._sender else None
        if folder is None:
            return None
        try:
            return Receiver(folder)
        except OSError:
            return None  # the poll notices changes, a little later

    async def _poll(self) -> None:
        """Notice changes for which no datagram came."""
        seen: int | None = None
        with suppress(TrellisError):
            while self._data_version is not None:
                version = await self._data_version()
                if seen is not None and version != seen:
                    self._hints.publish(_ALL)
                seen = version
                await asyncio.sleep(_POLL_SECONDS)


def socket_folder(path: Path) -> Path | None:
    """Return the folder of a database's sockets; None if none can be private."""
    # Socket paths are limited to about 100 bytes, so the parent is short and the name a hash.
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


class Sender:
    """Sends topics to the other processes that watch a database."""

    def __init__(self, path: Path) -> None:
        self.folder = socket_folder(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._own = f"{os.getpid()}-"

    def send(self, topics: Iterable[Topic]) -> None:
        """Send these topics to every other process."""
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
            # It was closed in the meantime, or its buffer is full, so that its owner wakes anyway.
            pass

    def close(self) -> None:
        """Close the socket; remove the folder if no other process uses it."""
        self._socket.close()
        if self.folder is not None:
            with suppress(OSError):
                self.folder.rmdir()


class Receiver:
    """Receives topics from other processes, for one watch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)  # another process may just have removed it
        self._address = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        try:
            self.socket.bind(str(self._address))
        except OSError:
            self.socket.close()
            raise

    def receive(self, publish: Callable[[set[Topic]], None]) -> None:
        """Read everything that was sent and publish it."""
        topics: set[Topic] = set()
        with suppress(BlockingIOError):
            while True:
                topics.update(_TOPICS[byte] for byte in self.socket.recv(64) if byte in _TOPICS)
        if topics:
            publish(topics)

    def close(self) -> None:
        """Close the socket and remove its name."""
        self.socket.close()
        with suppress(OSError):
            self._address.unlink()
