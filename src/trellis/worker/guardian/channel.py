"""The channel between a guardian and its worker process: one JSON object per line, both ways.

The guardian sends `apart` (the types that run apart, once before the process begins and again when
they change), `drain` (claim no more, finish and exit), `stop` (finish within the grace; `replaced`
says that the worker itself works on) and `stop_now`. The worker process sends `sources` with the
files it has loaded if it is to be replaced when they change, `opening` with the URL of the engine
before it opens a session there, `working` when it claims jobs, `metrics` once a second if the
guardian has a health port, `crashed` with the type of a job
that crashed its handler process, `successor_wanted` with the reason when another process should
start before its last handlers have ended, and `finished` with the reason before it exits. The end
of the stream means that the other process has ended.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

EndReason = Literal["stopped", "drained", "max_jobs", "idle"]
#: It has lost threads, or it claims no more because it has run as many jobs as it may.
ReplacementReason = Literal["lost_threads", "max_jobs"]
_MAX_LINE: Final = 1 << 20


class Working(NamedTuple):
    """The worker process claims jobs of these types."""

    types: list[str]


class Finished(NamedTuple):
    """The worker process has closed its session and is about to exit."""

    reason: EndReason
    #: How many handlers it has called.
    begun: int
    settled: int
    last_state: str | None


class Channel:
    """One end of the channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        """Use this end of a socket pair."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_MAX_LINE))

    async def send(self, message: str, **fields: Any) -> None:  # noqa: ANN401 - JSON values
        """Send a message of this type; do nothing if the other process has ended."""
        with suppress(ConnectionError):
            self._writer.write(json.dumps({"message": message, **fields}).encode() + b"\n")
            await self._writer.drain()

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of the other process until it ends."""
        with suppress(ConnectionError):
            while line := await self._reader.readline():
                yield json.loads(line)

    def close(self) -> None:
        """Close this end."""
        self._writer.close()
