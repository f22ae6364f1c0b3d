"""Forked copies of a worker process.

A handler may fork. The child is a copy of the whole worker: the loop with all other handlers, the
connections, the shared status that the guardian reads. The child may compute, start another program
or exit. When it leaves the handler, for the worker's code or for the loop, it is ended: it settles
nothing, and no other handler continues in it. `multiprocessing` and `subprocess` never leave the
handler.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections import deque
from concurrent.futures import thread as pools
from contextlib import suppress
from queue import Empty
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakSet

_EXIT_FAILED: Final = 1


class Copied(Protocol):
    """A part of a worker that must not continue in a copy."""

    def become_copy(self) -> None:
        """Stop, in the child of a fork."""


_watched: Final[WeakSet[Copied]] = WeakSet()


def watch(part: Copied) -> None:
    """Call `become_copy` of this part in the child when this process forks."""
    _watched.add(part)


def forget(part: Copied) -> None:
    """Stop watching this part."""
    _watched.discard(part)


def end(error: BaseException | None = None) -> NoReturn:
    """End a copy that has left its handler, with the exit code Python would give it."""
    code = _EXIT_FAILED
    try:
        if error is None or (isinstance(error, SystemExit) and error.code is None):
            code = os.EX_OK
        elif isinstance(error, SystemExit) and isinstance(error.code, int):
            code = error.code & 0xFF
        else:
            lines = traceback.format_exception(error)
            _write(f"A process that a handler forked failed:\n{''.join(lines)}")
    finally:
        os._exit(code)


def trap(loop: asyncio.AbstractEventLoop) -> None:
    """End this copy when its thread returns to the loop, before anything else runs there."""
    loop.call_soon(_end_in_loop)
    ready = getattr(loop, "_ready", None)  # what asyncio runs next; other loops differ
    if isinstance(ready, deque):
        ready.rotate(1)


def _end_in_loop() -> None:
    try:
        _write(
            f"Process {os.getpid()}, which a handler forked, was ended because it returned to the "
            "event loop of its parent. A forked child can compute, start a program or exit; it "
            "cannot await.\n"
        )
    finally:
        os._exit(_EXIT_FAILED)


class _Ending:
    """A work item for a thread pool that ends the copy."""

    def run(self, *_: Any) -> NoReturn:  # noqa: ANN401 - pools differ in what they pass
        os._exit(os.EX_OK)


def _trap_pool() -> None:
    """End this copy when the thread that forked returns to its pool; drop waiting work items."""
    queues = getattr(pools, "_threads_queues", {})
    queue = queues.get(threading.current_thread())
    if queue is not None:
        with suppress(Empty):
            while True:
                queue.get_nowait()
        queue.put(_Ending())


def _write(text: str) -> None:
    """Write to stderr without buffers and locks, which are copies too."""
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


def _after_fork_in_child() -> None:
    parts = list(_watched)
    _watched.clear()
    if parts:
        _trap_pool()
    for part in parts:
        part.become_copy()


os.register_at_fork(after_in_child=_after_fork_in_child)
