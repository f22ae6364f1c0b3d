"""The line between a guardian and its worker process: one JSON object per line, both ways.

Down: `stop` (finish within the grace), `stop_now`. Up: `opening` with the engine's URL before a
session is opened there, `hello` once work begins, `bye` with the reason when it ends. The end of
the line means that the other side is gone.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

Parting = Literal["stopped", "drained", "spent"]
_LONGEST: Final = 1 << 20


class Hello(NamedTuple):
    """The worker process works."""

    types: list[str]


class Bye(NamedTuple):
    """The worker process is about to end in order."""

    reason: Parting
    settled: int
    last_state: str | None


class Link:
    """One end of the line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        """Speak over this end of a socket pair."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_LONGEST))

    async def send(self, word: str, **details: Any) -> None:  # noqa: ANN401 - JSON values
        """Say something; nothing happens if the other side is gone."""
        with suppress(ConnectionError):
            self._writer.write(json.dumps({"word": word, **details}).encode() + b"\n")
            await self._writer.drain()

    async def words(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what the other side says until it is gone."""
        with suppress(ConnectionError):
            while line := await self._reader.readline():
                yield json.loads(line)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
