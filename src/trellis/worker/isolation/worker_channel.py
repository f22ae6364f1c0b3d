"""The connection of a handler process to its worker: messages, notes, log records and locks.

Any thread may send. Notes are sent immediately, so that they survive a crash right after them; only
progress and heartbeats, which may come in thousands, wait a moment and only the newest is sent. A
process that a handler forks sends nothing. A process that cannot send ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
import traceback
from concurrent.futures import Future
from contextvars import ContextVar
from itertools import count
from typing import Any, Final

from trellis.core.job import Fence
from trellis.engines.values import Heartbeat, LockHolder, NoteBody, Progress
from trellis.errors import EngineClosed, EngineUnavailable
from trellis.worker.attempt import Attempt
from trellis.worker.isolation import protocol
from trellis.worker.isolation.protocol import CHANNEL_CLOSED, Message

#: Above the low file numbers, which some programs close and open again.
_FIRST_FILE: Final = 200
#: How long progress and heartbeats wait for newer ones, in seconds.
_LINGER: Final = 0.05

#: The token of the attempt whose handler runs in this context.
current_token: Final[ContextVar[int | None]] = ContextVar("trellis_token", default=None)


class WorkerChannel:
    """Sends messages to the worker and receives those of the worker."""

    def __init__(self, file: int) -> None:
        # A socket, because its calls fail on other files: if the handler closes this file and its
        # number is used again, no message is written to the wrong file.
        self._socket = socket.socket(fileno=fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FIRST_FILE))
        os.close(file)
        self._guard = threading.Lock()
        self._pid = os.getpid()

    def send(self, message: str, **fields: Any) -> None:  # noqa: ANN401 - JSON values
        """Send a message of this type; end the process if that fails."""
        if os.getpid() != self._pid:
            return
        encoded = protocol.encode(message, **fields)
        with self._guard:
            try:
                self._socket.sendall(encoded)
            except OSError:
                os._exit(CHANNEL_CLOSED)

    def receive(self) -> Message | None:
        """Wait for the next message; None if the worker has ended."""
        try:
            return protocol.receive(self._socket)
        except OSError:
            return None


class ChannelNotes:
    """Sends the notes of handlers to the worker, which stores them."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._order = threading.Lock()
        self._newest: dict[tuple[int, type], Any] = {}
        self._has_waiting = threading.Event()
        threading.Thread(target=self._send_waiting, name="trellis-notes", daemon=True).start()

    def add(self, attempt: Attempt, body: NoteBody) -> None:
        """Take a note, from any thread."""
        token = attempt.fence.token
        with self._order:
            if isinstance(body, Progress | Heartbeat):
                self._newest[token, type(body)] = body
                self._has_waiting.set()
                return
            self._send_newest()
            self._channel.send("note", token=token, **protocol.encode_note(body))

    def send_all(self) -> None:
        """Send all notes that wait."""
        with self._order:
            self._send_newest()

    def _send_newest(self) -> None:
        self._has_waiting.clear()
        newest, self._newest = self._newest, {}
        for (token, _), body in newest.items():
            self._channel.send("note", token=token, **protocol.encode_note(body))

    def _send_waiting(self) -> None:
        while True:
            self._has_waiting.wait()
            time.sleep(_LINGER)
            self.send_all()


class LogForwarder(logging.Handler):
    """Sends the records of `logging` to the worker, which shows and keeps them."""

    def __init__(self, channel: WorkerChannel) -> None:
        super().__init__()
        self._channel = channel

    def replace_root_handlers(self) -> None:
        """Replace the handlers that a module has set up: the worker has the same ones."""
        logging.getLogger().handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - `logging` reports a bad format string
            self.handleError(record)
            return
        error = record.exc_info
        self._channel.send(
            "log_record",
            token=current_token.get(),
            name=record.name,
            level=record.levelno,
            text=text,
            created=record.created,
            process=record.process,
            place=[record.pathname, record.lineno, record.funcName],
            exception="".join(traceback.format_exception(*error)) if error and error[0] else None,
        )


class ChannelLocks:
    """The lock service of a handler process: the worker calls the engine."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._numbers = count()
        self._guard = threading.Lock()
        self._pending: dict[int, Future[Any]] = {}

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Have the worker take a lock."""
        return self._request(fence, "take", name)

    def free(self, fence: Fence, name: str) -> Future[bool]:
        """Have the worker free a lock."""
        return self._request(fence, "free", name)

    def resolve(self, reply: Message) -> None:
        """Resolve the request that this `lock_reply` answers."""
        with self._guard:
            future = self._pending.pop(reply["number"])
        error, value = reply["error"], reply["value"]
        if error is not None:
            kind = EngineClosed if error == EngineClosed.code else EngineUnavailable
            future.set_exception(kind(value))
        elif isinstance(value, list):
            future.set_result(LockHolder(*value))
        else:
            future.set_result(value)

    def _request(self, fence: Fence, action: str, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        with self._guard:
            number = next(self._numbers)
            self._pending[number] = future
        self._channel.send(
            "lock_request", token=fence.token, number=number, action=action, name=name
        )
        return future
