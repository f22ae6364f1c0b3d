"""What `logging` was told in a handler process, told again in its worker.

The worker's own handlers show it and, inside the context of the job, keep it in the job's log: one
set-up for all processes. Only the root's handlers: those of a logger have heard it over there.
"""

from __future__ import annotations

import logging
from contextvars import Context
from pathlib import Path

from trellis.worker.isolation.frames import BadMessage, Message


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
