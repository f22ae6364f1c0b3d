"""Writing to stderr without ever waiting for whoever reads it.

A reader that stops reading, or goes away, must hold up neither the guardian, which would miss
signals and leases, nor its worker processes, whose lines come through here. Lines are written by a
thread; what does not fit into its line of waiting is dropped and counted.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import IO, Final

_MOST_WAITING: Final = 10_000
_FAREWELL: Final = 1.0


class Relay:
    """The way of lines to a stream; can stand for the stream itself in `logging`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="trellis-stderr", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Pass a line on, or drop it if nobody reads."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def write(self, text: str) -> int:
        """Pass text on, as a stream would."""
        self.put(text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: every line goes out as soon as it can."""

    def close(self) -> None:
        """Wait a moment for what is still to be written."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(_FAREWELL)

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            if self._dropped:
                line += f"({self._dropped} lines were dropped: nobody read them)\n".encode()
                self._dropped = 0
            with suppress(OSError, ValueError):  # the reader is gone; others still count on us
                self._stream.write(line)
                self._stream.flush()
