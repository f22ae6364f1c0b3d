"""The folders of one keeper: made short, locked while it lives, removed with it.

A Unix socket's path may have 107 bytes, and the account of the servers must get in: neither holds
for pytest's own temporary folders. A keeper that was killed leaves its folders behind; the next
one finds them unlocked and removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

from tests.harness.servers.account import Account

_PREFIX: Final = "trellis-pg-"
_LOCK: Final = "keeper.lock"
_LONGEST: Final = 60
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - no fixed name is used in it
_ENOUGH: Final = 1 << 30


class Folders:
    """`disk` for programs and durable servers; `memory` for fast ones, where there is room."""

    def __init__(self, account: Account) -> None:
        root = _temporary(account)
        self._locks: list[IO[bytes]] = []
        self.disk = self._make(root)
        self.memory = self._make(_MEMORY) if _has_room(_MEMORY) else self.disk

    def _make(self, root: Path) -> Path:
        _sweep(root)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        draft = folder / "draft.lock"
        lock = draft.open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        draft.rename(folder / _LOCK)  # locked from the moment it has its name
        folder.chmod(0o711)  # the servers' account passes through; it cannot look around
        self._locks.append(lock)
        return folder

    def remove(self) -> None:
        """Remove everything."""
        for folder in {self.disk, self.memory}:
            shutil.rmtree(folder, ignore_errors=True)
        for lock in self._locks:
            lock.close()


def _temporary(account: Account) -> Path:
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - no fixed names
        path = Path(place)
        if len(place) <= _LONGEST and path.is_dir() and account.can_reach(path):
            return path
    raise RuntimeError("There is no temporary folder that the account of the servers can reach.")


def _has_room(place: Path) -> bool:
    if not os.access(place, os.W_OK | os.X_OK):
        return False
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize >= _ENOUGH


def _sweep(root: Path) -> None:
    """Remove the folders of keepers of ours that were killed."""
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid == os.geteuid() and _is_left(folder / _LOCK):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # somebody else removes it right now


def _is_left(lock: Path) -> bool:
    """Tell whether nobody holds a lock; one that is not there yet belongs to a folder in making."""
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
