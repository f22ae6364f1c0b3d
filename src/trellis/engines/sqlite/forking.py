"""No file of ours is open when this process forks.

SQLite keeps what it knows about its locks in memory, where a forked child finds them and takes them
for its own: it then writes into a log that somebody else may remove, or waits for ever for a lock
that nobody has. So before a fork every connection is closed, between two uses of it, and opened
again when it is next used. A child thus begins with nothing and opens connections of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet


class Closable(Protocol):
    """What has files open."""

    def close(self) -> None:
        """Close them."""


R = TypeVar("R", bound=Closable)

#: Nobody forks while somebody has this: to open a file, or to fork.
_gate: Final = threading.RLock()
_living: Final[WeakSet[Access[Any]]] = WeakSet()
#: Whom the fork under way has made wait.
_waiting: Final[list[Access[Any]]] = []


@contextmanager
def no_fork() -> Iterator[None]:
    """Keep every thread of this process from forking: a file is open that nobody else knows of."""
    with _gate:
        yield


class Access(Generic[R]):
    """Something with open files, used by one thread at a time."""

    def __init__(self, opened: R, reopen: Callable[[], R]) -> None:
        self._opened: R | None = opened
        self._reopen = reopen
        self._turn = threading.Lock()
        with no_fork():
            _living.add(self)

    @contextmanager
    def turn(self) -> Iterator[R]:
        """Use it; it is opened again if a fork has closed it."""
        with self._turn:
            if self._opened is None:
                self._opened = self._reopen()
            yield self._opened

    def close(self) -> None:
        """Close it for good."""
        with no_fork(), self._turn:
            _living.discard(self)
            self._let_go()

    def wait_for_fork(self) -> None:
        """Close the files and let nobody use them until `go_on`."""
        self._turn.acquire()
        self._let_go()

    def go_on(self) -> None:
        """Have whoever waits for a turn go on."""
        self._turn.release()

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(Exception):  # whatever is wrong with it, it is not ours any more
                opened.close()


def _before_fork() -> None:
    _gate.acquire()
    for access in list(_living):
        access.wait_for_fork()
        _waiting.append(access)


def _after_fork() -> None:
    while _waiting:
        _waiting.pop().go_on()
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
