"""Messages between a worker and a handler process: a length, then that much JSON text.

JSON and not pickle, because what comes from a process that runs other people's code is not trusted:
anything that is no message of ours is a `BadMessage`, and its sender is ended.

What the messages say: a claimed job on its way down, notes and the verdict on their way up.

What `logging` was told in a handler process, told again in its worker.

The worker's own handlers show it and, inside the context of the job, keep it in the job's log: one
set-up for all processes. Only the root's handlers: those of a logger have heard it over there.

The handler process's end of the line to its worker: what is said there, and in which order.

Any thread may speak. What a handler notes is sent at once, so that it survives a crash the moment
after; only of progress and heartbeats, which may come in thousands, the newest waits a moment. A
process that the handler forks has nothing to say here, and one that has lost its line must end.

Locks for handlers in other processes: the question goes up the line, the answer comes down.

The engine is asked by the worker, under the fence of the attempt that runs there; whoever asks for
an attempt that is over is told that there is nobody left to ask.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, ContextVar
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

from trellis.core import commands
from trellis.core.commands import FencedCommand
from trellis.core.job import Definition, Failure, Fence, Head, JobRecord
from trellis.core.policy import decode_policy, encode_policy
from trellis.core.states import State
from trellis.core.trace_context import Context as TraceContext
from trellis.engines.values import Heartbeat, Item, LockHolder, LogLine, NoteBody, Phase, Progress
from trellis.errors import EngineClosed, EngineError, EngineUnavailable
from trellis.worker.attempt import Attempt
from trellis.worker.locks import LockService
from trellis.worker.notes import NoteWriter

_LENGTH: Final = struct.Struct("!I")
#: A payload or result of the largest size, escaped, with all that goes with it.
_LONGEST: Final = 64 << 20

Message: TypeAlias = dict[str, Any]


class BadMessage(Exception):
    """What came over the line is no message."""


def pack(word: str, **details: Any) -> bytes:  # noqa: ANN401 - JSON values
    """Return a message as it travels."""
    text = json.dumps({"word": word, **details}, separators=(",", ":"), default=_plain)
    body = text.encode()
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; None at the end of the line."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        return _parse(await reader.readexactly(_length(head)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive(line: socket.socket) -> Message | None:
    """Wait for the next message; None at the end of the line."""
    head = _exactly(line, _LENGTH.size)
    body = None if head is None else _exactly(line, _length(head))
    return None if body is None else _parse(body)


def _exactly(line: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _length(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST:
        raise BadMessage(f"a message of {length:,} bytes")
    return int(length)


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("word"), str):
        raise BadMessage("no word in it")
    return message


def _plain(value: Any) -> float | str:  # noqa: ANN401 - whatever a handler reports
    """Write a number of another kind (Decimal, numpy) as a number, anything else as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


#: What a handler may say about its job.
_NOTES: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Heartbeat, Item, LogLine, Phase, Progress)
}


def write_record(record: JobRecord) -> list[Any]:
    """Return a job as plain data."""
    definition, head = record
    return [[*definition._replace(policy=encode_policy(definition.policy))], [*head]]  # type: ignore[arg-type] # text instead


def read_record(written: Any) -> JobRecord:  # noqa: ANN401 - JSON
    """Return the job that was written."""
    definition = Definition(*written[0])
    head = Head(*written[1])
    fence: Any = head.fence
    error: Any = head.error
    return JobRecord(
        definition._replace(
            policy=decode_policy(str(definition.policy)),
            context=TraceContext(*definition.context),
            tags=tuple((name, value) for name, value in definition.tags),
        ),
        head._replace(
            state=State(head.state),
            fence=None if fence is None else Fence(*fence),
            error=None if error is None else Failure(*error),
        ),
    )


def write_note(body: NoteBody) -> dict[str, Any]:
    """Return a note as plain data."""
    return {"kind": type(body).__name__, "fields": list(body)}


def read_note(message: Message) -> NoteBody:
    """Return the note that was written."""
    try:
        body: NoteBody = _NOTES[message["kind"]](*message["fields"])
    except (KeyError, TypeError) as error:
        raise BadMessage(f"no note: {error}") from error
    return body


def write_verdict(command: FencedCommand | None) -> dict[str, Any]:
    """Return what a verdict consists of; the worker adds the fence and the time.

    None: the handler was stopped, and how the attempt ends is not decided in this process.
    """
    match command:
        case None:
            return {"kind": "stopped"}
        case commands.Complete():
            return {"kind": "complete", "result": command.result, "errors": command.item_errors}
        case commands.Fail():
            return {
                "kind": "fail",
                "error": list(command.error),
                "retryable": command.retryable,
                "delay": command.delay,
                "cancelled": command.cancelled,
                "roll": command.roll,
            }
        case commands.Snooze():
            return {"kind": "snooze", "delay": command.delay}
        case _:
            raise TypeError(f"No handler settles its job by {command!r}.")


def read_verdict(message: Message, attempt: Attempt) -> FencedCommand | None:
    """Return the command that settles this attempt as the verdict says; None if it was stopped."""
    fence, started_at = attempt.fence, attempt.started_at
    match message:
        case {"kind": "stopped"}:
            return None
        case {"kind": "complete", "result": result, "errors": errors}:
            return commands.Complete(fence, result, errors, started_at)
        case {"kind": "snooze", "delay": delay}:
            return commands.Snooze(fence, delay, started_at)
        case {
            "kind": "fail",
            "error": [code, text, detail],
            "retryable": retryable,
            "delay": delay,
            "cancelled": cancelled,
            "roll": roll,
        }:
            failure = Failure(code, text, detail)
            return commands.Fail(fence, failure, retryable, delay, cancelled, roll, started_at)
        case _:
            raise BadMessage("no verdict")


def emit(message: Message, context: Context | None) -> None:
    """Hand a record to the root logger's handlers, in the context of its job if it has one."""
    try:
        path, line, function = message["place"]
        record = logging.makeLogRecord({
            "name": str(message["name"]),
            "levelno": int(message["level"]),
            "levelname": logging.getLevelName(int(message["level"])),
            "msg": str(message["message"]),
            "created": float(message["created"]),
            "process": int(message["process"]),
            "pathname": str(path),
            "filename": Path(str(path)).name,
            "lineno": int(line),
            "funcName": function,
            "exc_text": message["exception"],
        })  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessage(f"no record: {error}") from error
    handle = logging.getLogger().handle
    if context is None:
        handle(record)
    else:
        context.run(handle, record)


#: The exit code of a process whose handler has closed the line.
LINE_CLOSED: Final = 76
#: Out of the way of programs that close and reopen the low numbers.
_HIGH: Final = 200
_LINGER: Final = 0.05

#: The token of the attempt whose handler is running here.
current_token: Final[ContextVar[int | None]] = ContextVar("trellis_token", default=None)


class Line:
    """Speaks to the worker and hears it."""

    def __init__(self, file: int) -> None:
        # A socket, whose calls fail on any other kind of file: should the handler close it and the
        # number be used again, nothing is written where it does not belong.
        self._end = socket.socket(fileno=fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH))
        os.close(file)
        self._guard = threading.Lock()
        self._process = os.getpid()

    def say(self, word: str, **details: Any) -> None:  # noqa: ANN401 - JSON values
        """Tell the worker; end the process if it cannot be told."""
        if os.getpid() != self._process:
            return
        message = pack(word, **details)
        with self._guard:
            try:
                self._end.sendall(message)
            except OSError:
                os._exit(LINE_CLOSED)

    def hear(self) -> Message | None:
        """Wait for the worker's next word; None if the worker is gone."""
        try:
            return receive(self._end)
        except OSError:
            return None


class LineNotes(NoteWriter):
    """Takes notes from handlers and sends them to the worker, which stores them."""

    def __init__(self, line: Line) -> None:
        """Need no engine."""
        self._line = line
        self._order = threading.Lock()
        self._newest: dict[tuple[int, type], Any] = {}
        self._held = threading.Event()
        threading.Thread(target=self._send_held, name="trellis-notes", daemon=True).start()

    def add(self, attempt: Attempt, body: NoteBody) -> None:
        """Take a note, from any thread."""
        token = attempt.fence.token
        with self._order:
            if isinstance(body, Progress | Heartbeat):
                self._newest[token, type(body)] = body
                self._held.set()
                return
            self._send_newest()
            self._line.say("note", token=token, **write_note(body))

    def send_all(self) -> None:
        """Send what waits."""
        with self._order:
            self._send_newest()

    def _send_newest(self) -> None:
        self._held.clear()
        newest, self._newest = self._newest, {}
        for (token, _), body in newest.items():
            self._line.say("note", token=token, **write_note(body))

    def _send_held(self) -> None:
        while True:
            self._held.wait()
            time.sleep(_LINGER)
            self.send_all()


class RecordsToWorker(logging.Handler):
    """Sends what `logging` is told in this process to the worker, which shows and keeps it."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def be_the_only_one(self) -> None:
        """Take the place of handlers that a module has set up: the worker has the same ones."""
        logging.getLogger().handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - a bad format string is logging's own business
            self.handleError(record)
            return
        error = record.exc_info
        self._line.say(
            "record",
            token=current_token.get(),
            name=record.name,
            level=record.levelno,
            message=message,
            created=record.created,
            process=record.process,
            place=[record.pathname, record.lineno, record.funcName],
            exception="".join(traceback.format_exception(*error)) if error and error[0] else None,
        )


_OVER: Final = "The attempt is over, and its locks with it."
_Answer = Callable[[dict[str, Any]], None]


class LineLocks:
    """The lock service of a handler process."""

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


def ask_for(message: Message, fence: Fence, locks: LockService | None, answer: _Answer) -> None:
    """Ask the worker's lock service what a handler process asks; any thread may call `answer`."""
    if locks is None:
        refuse(message, answer)
        return
    match message:
        case {"what": "take", "name": str(name)}:
            future: Future[Any] = locks.take(fence, name)
        case {"what": "free", "name": str(name)}:
            future = locks.free(fence, name)
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
