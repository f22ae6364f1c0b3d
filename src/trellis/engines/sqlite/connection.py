"""Opening the file safely: settings, waiting for locks, checkpoints, forks.

WAL with `synchronous=FULL`: a commit that returned survives a power cut. Automatic checkpoints are
off on every connection, because SQLite before 3.51.3 can corrupt the file when two connections
checkpoint at the same moment; `Checkpointer` runs them under a file lock. The busy timeout of
SQLite is off, because it backs off to 100 ms; `patiently` waits instead.

No connection is open while this process forks. SQLite keeps what it knows about its locks in
memory, where a forked child finds them and believes that they are its own: it then writes into a
log that another process may remove, or waits without end for a lock that no process has. So every
connection is closed before a fork, between two uses of it, and opened again when it is next used. A
child begins without connections and opens its own.
"""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from trellis.engines.sqlite.errors import is_busy, translate
from trellis.engines.sqlite.transaction import FRAGMENTS, STATEMENTS
from trellis.errors import DatabaseMissing, EngineError, ReadOnlyDatabase

BUSY_SECONDS: Final = 5.0
#: The first release in which two connections may checkpoint at the same moment.
SAFE_RELEASE: Final = (3, 51, 3)
#: The size in bytes to which SQLite truncates the log at a reset; enough while no reader is slow.
LOG_LIMIT: Final = 64 * 1024 * 1024
_CHECKPOINT_CHANGES: Final = 20_000
_CHECKPOINT_SECONDS: Final = 1.0
_SETTINGS: Final = (
    "set_journal_mode",
    "set_synchronous",
    "set_wal_autocheckpoint",
    "set_journal_size_limit",
    "set_busy_timeout",
    "set_cache_size",
    "set_temp_store",
)
T = TypeVar("T")


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file; create it, readable by its owner only, if it is missing and may be made."""
    if not _exists(path):
        if not create:
            raise DatabaseMissing(
                f"There is no database at {path}. Check the URL, or run "
                f"`trellis migrate --url sqlite:///{path}` to create it."
            )
        _make(path)
    try:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        for name in _SETTINGS:
            patiently(partial(connection.execute, STATEMENTS[name])).fetchall()
    except sqlite3.Error as error:
        raise translate(error, path) from error
    return connection


class OpenedFile:
    """The file that an engine has opened; it may be deleted or replaced while it is in use.

    SQLite does not notice that: it goes on reading and writing the file without a name, and
    everything in it is gone with the last program that has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = self._look()

    def check(self) -> None:
        """Raise `DatabaseMissing` if the path does not lead to this file any more."""
        found = self._look()
        if found == self._identity:
            return
        if found is None:
            raise DatabaseMissing(
                f"{self.path} was deleted or moved while this program had it open. Nothing of "
                "this call was stored. Move the file back, and this program goes on; or stop all "
                "programs that use it, restore a backup and start them again."
            )
        raise DatabaseMissing(
            f"{self.path} was replaced by another file while this program had the first one open. "
            "Nothing of this call was stored. Stop all programs that use it, and start them again "
            "to use the new file."
        )

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreachable(self.path, error) from error
        return found.st_dev, found.st_ino


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _unreachable(path, error) from error


def _unreachable(path: Path, error: OSError) -> ReadOnlyDatabase:
    return ReadOnlyDatabase(
        f"{path} cannot be reached ({error.strerror}). Check that this user may open its folder "
        "and write there."
    )


def _make(path: Path) -> None:
    try:
        # Only a file that did not exist before may be closed past SQLite; see `schema.py`.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise ReadOnlyDatabase(
            f"{path} cannot be created ({error.strerror}). Check that its folder exists and that "
            "this user may write there."
        ) from error


def patiently(action: Callable[[], T], seconds: float = BUSY_SECONDS) -> T:
    """Run the action, again while another connection has the database locked."""
    until = time.monotonic() + seconds
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
        # 0.2 to 1 ms: short enough that a waiting writer is next, long enough not to burn a core.
        time.sleep(random.uniform(0.0002, 0.001))  # noqa: S311 - spreads retries, guards nothing


def read_setting(connection: sqlite3.Connection, name: str) -> object:
    """Return the value of a pragma that is in force now."""
    question = FRAGMENTS["setting"].format(name=name)
    row = connection.execute(question).fetchone()
    if row is None:
        raise EngineError(f"SQLite does not answer `{question}`.")
    value: object = row[0]
    return value


# -- checkpoints -------------------------------------------------------------------------------


class Checkpointer:
    """Moves the write-ahead log into the database, in one process at a time.

    A process that does not get the lock on the file beside the database leaves the checkpoint to
    the process that has it; so does one that may not open that file: it may only read.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock_file: int | None = None
        with suppress(PermissionError):
            self._lock_file = os.open(f"{path}-trellis-lock", os.O_CREAT | os.O_RDWR, 0o600)
        self._seen_changes = connection.total_changes
        self._last = time.monotonic()

    def after_commit(self) -> None:
        """Checkpoint if much was written since the last time."""
        if self._connection.total_changes - self._seen_changes >= _CHECKPOINT_CHANGES:
            self.run()

    def when_idle(self) -> None:
        """Checkpoint if anything was written and some time has passed."""
        changed = self._connection.total_changes != self._seen_changes
        if changed and time.monotonic() - self._last >= _CHECKPOINT_SECONDS:
            self.run()

    def run(self) -> bool:
        """Checkpoint now, unless another process is doing it."""
        self._seen_changes = self._connection.total_changes
        self._last = time.monotonic()
        if self._lock_file is None:
            return False
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Another process has it, or the file system has no locks; the log just stays longer.
            return False
        try:
            self._connection.execute(STATEMENTS["checkpoint"]).fetchall()
        except sqlite3.Error:
            # Busy, full or worse: the log stays, nothing is lost, and the next run tries again.
            return False
        finally:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Close the lock file; the file itself stays for the other processes."""
        if self._lock_file is not None:
            os.close(self._lock_file)


# -- forks -------------------------------------------------------------------------------------


class Closable(Protocol):
    """A value with open files."""

    def close(self) -> None:
        """Close them."""


R = TypeVar("R", bound=Closable)

#: Held while a file is opened outside a `ForkSafe`, and while the process forks.
_gate: Final = threading.RLock()
_living: Final[WeakSet[ForkSafe[Any]]] = WeakSet()
#: Those that the fork in progress has paused.
_paused: Final[list[ForkSafe[Any]]] = []


@contextmanager
def no_fork() -> Iterator[None]:
    """Keep every thread of this process from forking while a file is open here."""
    with _gate:
        yield


class ForkSafe(Generic[R]):
    """A value with open files, used by one thread at a time and closed before a fork."""

    def __init__(self, opened: R, reopen: Callable[[], R]) -> None:
        self._opened: R | None = opened
        self._reopen = reopen
        self._turn = threading.Lock()
        with no_fork():
            _living.add(self)

    @contextmanager
    def use(self) -> Iterator[R]:
        """Use the value; it is opened again if a fork has closed it."""
        with self._turn:
            if self._opened is None:
                self._opened = self._reopen()
            yield self._opened

    def close(self) -> None:
        """Close it for good."""
        with no_fork(), self._turn:
            _living.discard(self)
            self._close_opened()

    def pause(self) -> None:
        """Close the files and keep every thread from using them until `resume`."""
        self._turn.acquire()
        self._close_opened()

    def resume(self) -> None:
        """Let waiting threads continue."""
        self._turn.release()

    def _close_opened(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(Exception):  # it is dropped, even if it cannot be closed
                opened.close()


def _before_fork() -> None:
    _gate.acquire()
    for each in list(_living):
        each.pause()
        _paused.append(each)


def _after_fork() -> None:
    while _paused:
        _paused.pop().resume()
    _gate.release()


def _after_fork_in_child() -> None:
    _living.clear()  # these are the parent's
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )
