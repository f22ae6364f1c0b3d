"""Messages between a worker and a handler process: a length, then that much JSON text.

JSON and not pickle, because what comes from a process that runs other people's code is not trusted:
anything that is no message of ours is a `BadMessage`, and its sender is ended.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, Final, TypeAlias

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
