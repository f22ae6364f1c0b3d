"""A job's own log: lines that are stored with the job and shown to whoever looks at it.

At most so many lines per attempt are kept; what is said after them is how many were dropped.

What a worker's own log says about jobs: one line for each attempt that did not complete.

Every line carries the job, the attempt and the trace as fields (`log_fields`), whatever the format
of the log. Attempts that complete are counted, not told.

Making text from anywhere fit to be stored: logs and error messages must never poison a batch.
"""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any, Final

from trellis.control import Applied, Result
from trellis.core.durations import SECOND, in_words
from trellis.core.job import JobRecord
from trellis.core.lifecycle import Stale
from trellis.core.states import State
from trellis.core.trace_context import Context
from trellis.declaration.current_job import current_job
from trellis.engines.values import LogLine
from trellis.worker.attempt import Attempt
from trellis.worker.notes import NoteWriter

MOST_LINES: Final = 5_000


class JobLog:
    """`job.log.info("sent", to=address)`: plain calls, from any thread."""

    __slots__ = ("_attempt", "_notes")

    def __init__(self, attempt: Attempt, notes: NoteWriter) -> None:
        self._attempt = attempt
        self._notes = notes

    @property
    def attempt(self) -> Attempt:
        """Whose log this is."""
        return self._attempt

    @property
    def context(self) -> Context:
        """The request its job works for."""
        return self._attempt.record.definition.context

    @property
    def captures(self) -> bool:
        """Whether it takes the records of the standard `logging`, too."""
        return self._attempt.type.job_type.capture_logs

    def debug(self, message: object, /, *args: object, **fields: Any) -> None:  # noqa: ANN401
        """Add a line for people who look closely."""
        self.write("debug", _text(message, args), fields)

    def info(self, message: object, /, *args: object, **fields: Any) -> None:  # noqa: ANN401
        """Add a line; `%s` and friends in it are filled with what follows, as in `logging`."""
        self.write("info", _text(message, args), fields)

    def warning(self, message: object, /, *args: object, **fields: Any) -> None:  # noqa: ANN401
        """Add a line about something that may go wrong."""
        self.write("warning", _text(message, args), fields)

    def error(self, message: object, /, *args: object, **fields: Any) -> None:  # noqa: ANN401
        """Add a line about something that went wrong."""
        self.write("error", _text(message, args), fields)

    def exception(self, message: object, /, *args: object, **fields: Any) -> None:  # noqa: ANN401
        """Add a line about the exception that is being handled."""
        error = traceback.format_exc(limit=-10).strip()
        self.write("error", _text(message, args), {**fields, "exception": error})

    def write(self, level: str, message: str, fields: dict[str, Any] | None = None) -> None:
        """Add a line of any level."""
        attempt = self._attempt
        attempt.log_lines += 1
        dropped = attempt.log_lines - MOST_LINES
        if dropped > 0:
            if not _is_told(dropped):
                return
            level, fields = "warning", None
            message = f"An attempt keeps {MOST_LINES:,} lines; {dropped:,} more were dropped."
        text = json.dumps(fields, default=str) if fields else None
        line = LogLine(level, storable(message), None if text is None else _small(text))
        self._notes.add(attempt, line)


def _is_told(dropped: int) -> bool:
    """Tell whether this many is worth a line: 1, 10, 100, 1,000, ..."""
    return str(dropped).rstrip("0") == "1"


def _text(message: object, args: tuple[object, ...]) -> str:
    """Return the line; a log call never fails because of what it was given."""
    try:
        return str(message) % args if args else str(message)
    except (TypeError, ValueError):
        return " ".join(map(str, (message, *args)))


def _small(text: str, limit: int = 16_384) -> str:
    # json.dumps has escaped everything, so only the size and an escaped NUL can be in the way.
    if len(text) > limit or "\\u0000" in text:
        return json.dumps({"dropped": f"{len(text)} characters of fields that cannot be stored"})
    return text


def current_log() -> JobLog | None:
    """Return the log of the job whose handler is running here: it stands for the job."""
    job = current_job.get()
    return job if isinstance(job, JobLog) else None


class _Capture(logging.Handler):
    """Sends records of the standard `logging` made inside a handler to its job's log, too."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._users = 0

    def install(self) -> None:
        """Listen to the root logger; several workers of a process share one listener."""
        self._users += 1
        logging.getLogger().addHandler(self)

    def remove(self) -> None:
        """Listen no more, once the last worker has stopped."""
        self._users -= 1
        if not self._users:
            logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Copy the record, if it was made inside a handler."""
        log = current_log()
        if log is None or not log.captures or record.name.startswith("trellis."):
            return
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - a bad format string is logging's own business
            self.handleError(record)
            return
        log.write(record.levelname.lower(), message, {"logger": record.name})


log_capture: Final = _Capture()


_logger = logging.getLogger("trellis.jobs")
_BAD: Final = frozenset({State.FAILED, State.DEAD, State.STALE})


def log_fields(attempt: Attempt) -> dict[str, object]:
    """Return what every line about an attempt carries."""
    definition, head = attempt.record
    return {
        "job": definition.id,
        "type": f"{definition.service}/{definition.type}",
        "attempt": head.attempt,
        "attempt_id": attempt.fence.attempt_id,
        "trace": definition.context.trace_id,
    }


def report(attempt: Attempt, result: Result) -> None:
    """Write the line about an attempt that ended otherwise than by completing."""
    match result:
        case Applied(record):
            _tell(attempt, _level(record), _words(attempt, record))
        case Stale(head):
            late = f"the attempt is over, its result is refused: the job is {head.state}"
            _tell(attempt, logging.WARNING, late)
        case _:
            pass


def _tell(attempt: Attempt, level: int, words: str) -> None:
    if _logger.isEnabledFor(level):
        fields = log_fields(attempt)
        text = "%s %s attempt %s: %s"
        _logger.log(level, text, fields["type"], fields["job"], fields["attempt"], words,
                    extra={"trellis": fields})  # fmt: skip


def _level(record: JobRecord) -> int:
    if record.head.state in _BAD:
        return logging.ERROR
    return logging.WARNING if record.head.error is not None else logging.INFO


def _words(attempt: Attempt, record: JobRecord) -> str:
    head = record.head
    why = "" if head.error is None else f"{_sentence(head.error.message)} "
    if head.state is not State.RETRY:
        return f"{why}The job is {head.state}."
    if head.error is None:
        return "handed back"
    wait = max(0, head.run_at - (attempt.started_at or head.run_at))
    return f"{why}Tried again in about {in_words(wait // SECOND * SECOND)}."


def _sentence(message: str) -> str:
    """Return the first line of a message, closed, so that another sentence can follow."""
    line = next(iter(message.splitlines()), "").rstrip()
    return line if line.endswith((".", "!", "?", ":")) else f"{line}."


_LIMIT: Final = 16_384


def storable(text: str, limit: int = _LIMIT) -> str:
    """Return the text without NUL and lone surrogates, and not longer than the limit."""
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text) - limit:,} more characters)"
    if text.isascii():
        return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text
    clean = text.encode("utf-8", "replace").decode()
    return clean.replace("\0", "\N{REPLACEMENT CHARACTER}")
