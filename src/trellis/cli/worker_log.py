"""The log of a worker on stderr: one line of text or JSON per record, with the job it is about.

Records made inside a handler and records about a job carry its id, attempt and trace. Further
lines of a message and of a traceback are indented, and characters that act on a terminal are
escaped, so that no message can imitate another line.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, get_args

from trellis.cli.output import visible_block
from trellis.errors import ConfigurationError

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
LogFormat = Literal["text", "json"]


class SupportsWrite(Protocol):
    """The part of a stream that a log needs."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def flush(self) -> object:
        """Send the text on."""


#: Returns the fields of the job that is running in the current context; none outside of a job.
JobFields = Callable[[], dict[str, object]]


def parse_format(text: str | None) -> LogFormat:
    """Return the log format; raise for an unknown one."""
    for known in get_args(LogFormat):
        if (text or "text") == known:
            return known  # type: ignore[no-any-return] # one of the words of LogFormat
    raise ConfigurationError(f"There is no log format {text!r}. Use text or json.")


def parse_level(text: str | None) -> str:
    """Return the log level; raise for an unknown one."""
    name = (text or "info").upper()
    if name not in _LEVELS:
        raise ConfigurationError(
            f"There is no log level {text!r}. Use one of {', '.join(_LEVELS).lower()}."
        )
    return name


def set_up(
    form: LogFormat, level: str, job_fields: JobFields = dict, stream: SupportsWrite | None = None
) -> None:
    """Send the log of this process to a stream, by default stderr."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json(job_fields) if form == "json" else _Text(job_fields))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)


class _Format(logging.Formatter):
    def __init__(self, job_fields: JobFields) -> None:
        super().__init__()
        self._job_fields = job_fields

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the fields of the job that a record is about."""
        known: dict[str, Any] | None = getattr(record, "trellis", None)
        return self._job_fields() if known is None else known


class _Text(_Format):
    """`time level message (job ...)`; the job is left out where the message names it.

    The job is at the end of the first line. A traceback follows the message.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = visible_block(super().format(record)).replace("\n", "\n    ")
        return f"{moment} {record.levelname.lower():7} {text}"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        fields = {} if hasattr(record, "trellis") else self._fields(record)
        if not fields:
            return record.message
        first, line_break, rest = record.message.partition("\n")
        return f"{first}  (job {fields['job']} attempt {fields['attempt']}){line_break}{rest}"


class _Json(_Format):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields(record),
            "pid": record.process,
        }
        if record.exc_text:
            line["exception"] = record.exc_text
        elif record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
