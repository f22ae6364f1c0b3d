"""The messages between a worker and a handler process: a length, then that many bytes of JSON.

The worker sends:

- `job`: run this attempt; with the record, the fence, the items of earlier attempts, the lease of
  the worker and what is needed to load the handler.
- `renewed`: the worker has renewed its lease.
- `cancel_requested`: the cancellation of the job was requested.
- `stopping`: the worker is stopping.
- `interrupt`: end the handler.
- `lock_reply`: the answer to a `lock_request`.
- `exit`: close the lifespans and exit.

The handler process sends:

- `ready`: it can take a job.
- `accepted`: it has received the job.
- `started`: it calls the handler now.
- `note`: progress, a heartbeat, a phase, an item or a log line of the job.
- `log_record`: a record of `logging`.
- `lock_request`: take or free a lock.
- `outcome`: the handler has ended.

JSON and not pickle, because a process that runs the code of handlers is not trusted: anything that
is not one of these messages raises `BadMessage`, and the worker kills the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from contextvars import Context
from pathlib import Path
from typing import Any, Final, TypeAlias

from trellis.core import commands
from trellis.core.commands import FencedCommand
from trellis.core.durations import Instant, to_datetime, to_instant
from trellis.core.job import Context as TraceContext
from trellis.core.job import (
    Dedupe,
    Definition,
    Failure,
    Fence,
    Head,
    JobRecord,
    Relations,
)
from trellis.core.policy import decode_policy, encode_policy
from trellis.core.states import State
from trellis.engines.values import Heartbeat, Item, LogLine, NoteBody, Phase, Progress
from trellis.worker.attempt import Attempt
from trellis.worker.session import Lease

#: The exit code of a handler process whose handler has closed the channel.
CHANNEL_CLOSED: Final = 76
_LENGTH: Final = struct.Struct("!I")
#: A payload or result of the maximum size, escaped, with the other fields of its message.
_MAX_LENGTH: Final = 64 << 20
_NOTES: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Heartbeat, Item, LogLine, Phase, Progress)
}

#: A decoded message; `message["message"]` is its type.
Message: TypeAlias = dict[str, Any]


class BadMessage(Exception):
    """The other process has sent something that is not a message."""


# -- sending and receiving ---------------------------------------------------------------------


def encode(message: str, **fields: Any) -> bytes:  # noqa: ANN401 - JSON values
    """Return the bytes of a message of this type."""
    text = json.dumps({"message": message, **fields}, separators=(",", ":"), default=_plain)
    body = text.encode()
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; None at the end of the stream."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        return _decode(await reader.readexactly(_length(head)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive(channel: socket.socket) -> Message | None:
    """Wait for the next message; None at the end of the stream."""
    head = _receive_exactly(channel, _LENGTH.size)
    body = None if head is None else _receive_exactly(channel, _length(head))
    return None if body is None else _decode(body)


def _receive_exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _length(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_LENGTH:
        raise BadMessage(f"a message of {length:,} bytes")
    return int(length)


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        raise BadMessage("no message type")
    return message


def _plain(value: Any) -> float | str:  # noqa: ANN401 - anything a handler reports
    """Return a number of another kind (Decimal, numpy) as a number, anything else as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


# -- fields of messages ------------------------------------------------------------------------


def encode_record(record: JobRecord) -> list[Any]:
    """Return a job as plain data."""
    definition, head = record
    return [[*definition._replace(policy=encode_policy(definition.policy))], [*head]]  # type: ignore[arg-type] # text instead


def decode_record(encoded: Any) -> JobRecord:  # noqa: ANN401 - JSON
    """Return the job that was encoded."""
    definition = Definition(*encoded[0])
    head = Head(*encoded[1])
    fence: Any = head.fence
    error: Any = head.error
    dedupe: Any = definition.dedupe
    relations: Any = definition.relations
    return JobRecord(
        definition._replace(
            policy=decode_policy(str(definition.policy)),
            context=TraceContext(*definition.context),
            tags=tuple((name, value) for name, value in definition.tags),
            dedupe=None if dedupe is None else Dedupe(*dedupe),
            relations=None if relations is None else Relations(*relations),
        ),
        head._replace(
            state=State(head.state),
            fence=None if fence is None else Fence(*fence),
            error=None if error is None else Failure(*error),
        ),
    )


def encode_lease(lease: Lease | None) -> list[Instant] | None:
    """Return a lease as plain data."""
    return None if lease is None else [to_instant(each) for each in lease]


def decode_lease(encoded: Any) -> Lease | None:  # noqa: ANN401 - JSON
    """Return the lease that was encoded."""
    return None if encoded is None else Lease(*map(to_datetime, encoded))


def encode_note(body: NoteBody) -> dict[str, Any]:
    """Return a note as fields."""
    return {"kind": type(body).__name__, "fields": list(body)}


def decode_note(message: Message) -> NoteBody:
    """Return the note in a message."""
    try:
        body: NoteBody = _NOTES[message["kind"]](*message["fields"])
    except (KeyError, TypeError) as error:
        raise BadMessage(f"not a note: {error}") from error
    return body


def encode_outcome(command: FencedCommand | None) -> dict[str, Any]:
    """Return how a handler ended as fields; the worker adds the fence and the time.

    None: the handler was stopped, and the worker decides how the attempt is settled.
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
            raise TypeError(f"A handler cannot settle its job by {command!r}.")


def decode_outcome(message: Message, attempt: Attempt) -> FencedCommand | None:
    """Return the command that settles this attempt; None if its handler was stopped."""
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
            "error": [code, text, detail, data],
            "retryable": retryable,
            "delay": delay,
            "cancelled": cancelled,
            "roll": roll,
        }:
            failure = Failure(code, text, detail, data)
            return commands.Fail(fence, failure, retryable, delay, cancelled, roll, started_at)
        case _:
            raise BadMessage("not an outcome")


def emit_log_record(message: Message, context: Context | None) -> None:
    """Pass a record of `logging` to the handlers of the worker, in the context of its job.

    So one set-up of logging serves all processes, and the record gets into the log of the job. Only
    the handlers of the root logger: those of other loggers have had it in the handler process.
    """
    try:
        path, line, function = message["place"]
        record = logging.makeLogRecord({
            "name": str(message["name"]),
            "levelno": int(message["level"]),
            "levelname": logging.getLevelName(int(message["level"])),
            "msg": str(message["text"]),
            "created": float(message["created"]),
            "process": int(message["process"]),
            "pathname": str(path),
            "filename": Path(str(path)).name,
            "lineno": int(line),
            "funcName": function,
            "exc_text": message["exception"],
        })  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessage(f"not a log record: {error}") from error
    handle = logging.getLogger().handle
    if context is None:
        handle(record)
    else:
        context.run(handle, record)
