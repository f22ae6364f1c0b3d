"""Writing to stderr without waiting for its reader.

If the reader of stderr stops reading or exits, neither the guardian may wait, which would miss
signals and leases, nor its worker processes, whose lines pass through here. A thread writes the
lines; lines that do not fit into its queue are dropped and counted.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import IO, Final

_MAX_QUEUED: Final = 10_000
#: How long `close` waits for the thread, in seconds.
_CLOSE_TIMEOUT: Final = 1.0


class StderrRelay:
    """Queues lines for a stream; has the methods of a stream that `logging` needs."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._queue: queue.Queue[bytes | None] = queue.Queue(_MAX_QUEUED)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="trellis-stderr", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Queue a line, or drop it if the queue is full."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def write(self, text: str) -> int:
        """Queue text, as a stream would."""
        self.put(text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread flushes after every line."""

    def close(self) -> None:
        """Wait a limited time until the queued lines are written."""
        with suppress(queue.Full):
            self._queue.put_nowait(None)
            self._thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            if self._dropped:
                line += f"({self._dropped} lines were dropped: stderr was not read)\n".encode()
                self._dropped = 0
            with suppress(OSError, ValueError):  # the reader has exited; the guardian continues
                self._stream.write(line)
                self._stream.flush()
