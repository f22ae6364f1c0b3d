"""Locks for handlers in other processes: the question goes up the line, the answer comes down.

The engine is asked by the worker, under the fence of the attempt that runs there; whoever asks for
an attempt that is over is told that there is nobody left to ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, Final

from trellis.core.job import Fence
from trellis.engines.values import LockHolder
from trellis.errors import EngineClosed, EngineError, EngineUnavailable
from trellis.worker.isolation.frames import BadMessage, Message
from trellis.worker.isolation.line import Line
from trellis.worker.lock_desk import LockDesk

_OVER: Final = "The attempt is over, and its locks with it."
_Answer = Callable[[dict[str, Any]], None]


class LineLocks:
    """The desk of a handler process."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._numbers = count()
        self._guard = threading.Lock()
        self._open: dict[int, Future[Any]] = {}

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Have the worker ask for a lock."""
        return self._ask(fence, "take", name)

    def free(self, fence: Fence, name: str) -> Future[bool]:
        """Have the worker give a lock back."""
        return self._ask(fence, "free", name)

    def answer(self, message: Message) -> None:
        """Pass an answer on to whoever asked; on the thread that hears the worker."""
        with self._guard:
            future = self._open.pop(message["number"])
        error, value = message["error"], message["value"]
        if error is not None:
            kind = EngineClosed if error == EngineClosed.code else EngineUnavailable
            future.set_exception(kind(value))
        elif isinstance(value, list):
            future.set_result(LockHolder(*value))
        else:
            future.set_result(value)

    def _ask(self, fence: Fence, what: str, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        with self._guard:
            number = next(self._numbers)
            self._open[number] = future
        self._line.say("ask", token=fence.token, number=number, what=what, name=name)
        return future


def ask_for(message: Message, fence: Fence, desk: LockDesk | None, answer: _Answer) -> None:
    """Ask the worker's desk what a handler process asks; `answer` is called in some thread."""
    if desk is None:
        refuse(message, answer)
        return
    match message:
        case {"what": "take", "name": str(name)}:
            future: Future[Any] = desk.take(fence, name)
        case {"what": "free", "name": str(name)}:
            future = desk.free(fence, name)
        case _:
            raise BadMessage("an unknown question")
    future.add_done_callback(lambda done: answer(_written(message, done)))


def refuse(message: Message, answer: _Answer) -> None:
    """Answer a question for an attempt that is over."""
    answer({"number": message.get("number"), "value": _OVER, "error": EngineClosed.code})


def _written(message: Message, done: Future[Any]) -> dict[str, Any]:
    number = message.get("number")
    error = EngineClosed(_OVER) if done.cancelled() else done.exception()
    if error is None:
        return {"number": number, "value": done.result(), "error": None}
    code = error.code if isinstance(error, EngineError) else EngineError.code
    return {"number": number, "value": str(error), "error": code}
