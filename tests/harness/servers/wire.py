"""Just enough of PostgreSQL's protocol, version 3: where messages begin and end, and a few words.

A connection begins with packets that have no kind (TLS wishes, cancel requests, start-up); after
that everything is a kind of one byte, a length, and a body.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

_CANCEL: Final = 80877102
_TLS: Final = 80877103
_GSS: Final = 80877104


class Message(NamedTuple):
    """One message; `kind` is its letter."""

    kind: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        """The message as it is sent."""
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body

    def words(self) -> list[str]:
        """Return the strings of its body, each ended by a zero byte."""
        return [part.decode(errors="replace") for part in self.body.split(b"\0")]


class Splitter:
    """Cuts a stream of bytes into messages, whatever the pieces it comes in."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Take some bytes; return the messages that are complete."""
        data = self._rest + data
        found: list[Message] = []
        at = 0
        while len(data) - at >= 5:
            end = at + 1 + struct.unpack_from("!i", data, at + 1)[0]
            if end > len(data):
                break
            found.append(Message(data[at : at + 1], data[at + 5 : end]))
            at = end
        self._rest = data[at:]
        return found


@dataclass(frozen=True, slots=True)
class Opening:
    """How a client begins: a start-up with its parameters, or a request to cancel."""

    raw: bytes
    is_cancel: bool

    @property
    def parameters(self) -> dict[str, str]:
        """What a start-up asks for: user, database and settings."""
        words = self.raw[8:].split(b"\0")
        texts = [word.decode() for word in words[: len(words) - 2]]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    @property
    def cancel_key(self) -> bytes:
        """Which connection a cancel request means."""
        return self.raw[8:]


async def read_opening(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Opening | None:
    """Read how a client begins; wishes for encryption are declined. None: it left."""
    while True:
        try:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!ii", head)
            raw = head + await reader.readexactly(length - 8)
        except (asyncio.IncompleteReadError, OSError):
            return None
        if code not in {_TLS, _GSS}:
            return Opening(raw, code == _CANCEL)
        writer.write(b"N")


def opening(parameters: dict[str, str]) -> bytes:
    """Return a start-up packet."""
    words = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items())
    body = struct.pack("!i", 3 << 16) + words + b"\0"
    return struct.pack("!i", len(body) + 4) + body


def cancel(key: bytes) -> bytes:
    """Return a cancel request."""
    return struct.pack("!ii", len(key) + 8, _CANCEL) + key


def error(code: str, text: str, severity: str = "FATAL") -> bytes:
    """Return an error as a server sends it."""
    fields = f"S{severity}\0V{severity}\0C{code}\0M{text}\0\0"
    return Message(b"E", fields.encode()).raw
