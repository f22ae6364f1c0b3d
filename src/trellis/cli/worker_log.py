"""The log of a worker on stderr: one line of text or JSON per record, with the job it is about.

Records made inside a handler and records about a job carry its id, attempt and trace. Line breaks
in a message are indented and control characters are escaped, so that no message can imitate another
line.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, get_args

from trellis.errors import ConfigurationError

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
LogFormat = Literal["text", "json"]
#: All control characters but the line break, which is indented.
_ESCAPED: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
del _ESCAPED[ord("\n")]


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
    """`time level message (job ...)`; the job is left out where the message names it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = super().format(record).translate(_ESCAPED).replace("\n", "\n    ")
        fields = {} if hasattr(record, "trellis") else self._fields(record)
        job = f"  (job {fields['job']} attempt {fields['attempt']})" if fields else ""
        return f"{moment} {record.levelname.lower():7} {text}{job}"


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
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
