"""The log of a worker on stderr: a line of text or of JSON, with the job it is about.

Records made inside a handler and records about a job carry its id, attempt and trace; a line never
breaks, and control characters are escaped, so that nothing in a message can pass for another line.
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
#: Everything that could pass for a new line or move the cursor; a line break itself is indented.
_ESCAPED: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
del _ESCAPED[ord("\n")]


class SupportsWrite(Protocol):
    """As much of a stream as a log needs."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def flush(self) -> object:
        """Send it on."""


#: Says what is known about the job a record was made in.
About = Callable[[], dict[str, object]]


def form(text: str | None) -> LogFormat:
    """Return the form people mean; refuse a word that is none."""
    for known in get_args(LogFormat):
        if (text or "text") == known:
            return known  # type: ignore[no-any-return] # one of the words of LogFormat
    raise ConfigurationError(f"There is no log format {text!r}. Use text or json.")


def level(text: str | None) -> str:
    """Return the level people mean; refuse a word that is none."""
    name = (text or "info").upper()
    if name not in _LEVELS:
        raise ConfigurationError(
            f"There is no log level {text!r}. Use one of {', '.join(_LEVELS).lower()}."
        )
    return name


def set_up(
    form: LogFormat, level: str, about: About = dict, stream: SupportsWrite | None = None
) -> None:
    """Send the log of this process to stderr, or to what stands for it, in this form."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json(about) if form == "json" else _Text(about))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)


class _Format(logging.Formatter):
    def __init__(self, about: About) -> None:
        super().__init__()
        self._about = about

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return what is known about the job a record is about."""
        known: dict[str, Any] | None = getattr(record, "trellis", None)
        return self._about() if known is None else known


class _Text(_Format):
    """`time level logger: message (job=...)`; the job is left out where the message names it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = super().format(record).translate(_ESCAPED).replace("\n", "\n    ")
        about = "" if hasattr(record, "trellis") else _job(self._fields(record))
        return f"{moment} {record.levelname.lower():7} {text}{about}"


def _job(fields: dict[str, Any]) -> str:
    return f"  (job {fields['job']} attempt {fields['attempt']})" if fields else ""


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
