"""The handler process's end of the line to its worker: what is said there, and in which order.

Any thread may speak. What a handler notes is sent at once, so that it survives a crash the moment
after; only of progress and heartbeats, which may come in thousands, the newest waits a moment. A
process that the handler forks has nothing to say here, and one that has lost its line must end.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
import traceback
from contextvars import ContextVar
from typing import Any, Final

from trellis.engines.values import Heartbeat, NoteBody, Progress
from trellis.worker.attempt import Attempt
from trellis.worker.isolation import frames, wire
from trellis.worker.isolation.frames import Message
from trellis.worker.notes import NoteWriter

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
        message = frames.pack(word, **details)
        with self._guard:
            try:
                self._end.sendall(message)
            except OSError:
                os._exit(LINE_CLOSED)

    def hear(self) -> Message | None:
        """Wait for the worker's next word; None if the worker is gone."""
        try:
            return frames.receive(self._end)
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
            self._line.say("note", token=token, **wire.write_note(body))

    def send_all(self) -> None:
        """Send what waits."""
        with self._order:
            self._send_newest()

    def _send_newest(self) -> None:
        self._held.clear()
        newest, self._newest = self._newest, {}
        for (token, _), body in newest.items():
            self._line.say("note", token=token, **wire.write_note(body))

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
