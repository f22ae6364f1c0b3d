"""Logs about jobs: the log that is stored with a job, and the worker's log of attempts.

`JobLog` stores lines with the job, up to a limit per attempt; further lines are only counted.
`log_settlement` writes one line to the worker's log for each attempt that did not complete, with
the traceback, and one for each result that the engine refused; `log_lost` one for each handler that
is stopped because its attempt was ended elsewhere. The job, the attempt and the trace are fields of
the line (`log_fields`). Completed attempts are not logged.
`storable` makes any text fit to be stored, because one bad text would fail a whole batch.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any, Final

from trellis.control import Applied, Result
from trellis.core.durations import Instant
from trellis.core.job import Context, Fence, Head, JobId, JobRecord
from trellis.core.lifecycle import Stale
from trellis.core.states import State
from trellis.declaration.current_job import current_job
from trellis.engines.values import LogLine
from trellis.insight.time_expressions import roughly
from trellis.worker.attempt import Attempt
from trellis.worker.notes import Notes, note_life

LINES_LIMIT: Final = 5_000
_TEXT_LIMIT: Final = 16_384
#: Of a traceback in the log of a job: frames per exception, and characters.
_FRAMES: Final = 10
_TRACEBACK_LIMIT: Final = 8_192
_FAILURE_STATES: Final = frozenset({State.FAILED, State.DEAD, State.STALE})
#: The words to search the log for.
_STALE: Final = "writeback_stale_attempt"
_LOST: Final = "attempt_lost"
_logger = logging.getLogger("trellis.jobs")

# -- the log of a job --------------------------------------------------------------------------


class JobLog:
    """`job.log.info("sent", to=address)`: plain calls, from any thread."""

    __slots__ = ("_attempt", "_notes")

    def __init__(self, attempt: Attempt, notes: Notes) -> None:
        self._attempt = attempt
        self._notes = notes

    @property
    def attempt(self) -> Attempt:
        """The attempt that writes this log."""
        return self._attempt

    @property
    def job_id(self) -> JobId:
        """The id of its job."""
        return self._attempt.record.definition.id

    @property
    def context(self) -> Context:
        """The request and trace its job belongs to."""
        return self._attempt.record.definition.context

    @property
    def captures(self) -> bool:
        """Whether it also takes records of the standard `logging`."""
        return self._attempt.type.job_type.capture_logs

    def debug(self, message: object, /, *args: object, **fields: Any) -> None:  # noqa: ANN401
        """Add a line for debugging."""
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
        error = sys.exception()
        if error is not None:
            fields["exception"] = _traceback(error)
        self.write("error", _text(message, args), fields)

    def write(self, level: str, message: str, fields: dict[str, Any] | None = None) -> None:
        """Add a line of any level."""
        attempt = self._attempt
        attempt.log_lines += 1
        dropped = attempt.log_lines - LINES_LIMIT
        if dropped > 0:
            if not _is_reported(dropped):
                note_life(self._notes, attempt)
                return
            level, fields = "warning", None
            message = f"An attempt keeps {LINES_LIMIT:,} lines; {dropped:,} more were dropped."
        line = LogLine(level, storable(message), storable_json(fields) if fields else None)
        self._notes.add(attempt, line)


def _is_reported(dropped: int) -> bool:
    """Return whether this number of dropped lines is logged: 1, 10, 100, 1,000, ..."""
    return str(dropped).rstrip("0") == "1"


def _text(message: object, args: tuple[object, ...]) -> str:
    """Return the line; a log call never fails because of its arguments."""
    try:
        return str(message) % args if args else str(message)
    except (TypeError, ValueError):
        return " ".join(map(str, (message, *args)))


def _traceback(error: BaseException) -> str:
    """Return the traceback of an exception."""
    return _end_of("".join(traceback.format_exception(error, limit=-_FRAMES)).strip())


def _end_of(text: str) -> str:
    """Return a traceback; of a long one the end, which says what went wrong."""
    left_out = len(text) - _TRACEBACK_LIMIT
    return text if left_out <= 0 else f"… ({left_out:,} characters)\n{text[left_out:]}"


def current_log() -> JobLog | None:
    """Return the log of the job whose handler is running here; None outside of handlers."""
    job = current_job.get()
    return job if isinstance(job, JobLog) else None


class _Capture(logging.Handler):
    """Copies records of the standard `logging` that a handler makes to the log of its job."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._users = 0

    def install(self) -> None:
        """Attach to the root logger; the workers of a process share one capture."""
        self._users += 1
        logging.getLogger().addHandler(self)

    def remove(self) -> None:
        """Detach from the root logger, once the last worker has stopped."""
        self._users -= 1
        if not self._users:
            logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Copy the record, if a handler made it."""
        log = current_log()
        if log is None or not log.captures or record.name.startswith("trellis."):
            return
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - logging reports a bad format string itself
            self.handleError(record)
            return
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _traceback(record.exc_info[1])
        elif record.exc_text:  # from a handler process
            fields["exception"] = _end_of(record.exc_text.strip())
        log.write(record.levelname.lower(), message, fields)


log_capture: Final = _Capture()

# -- the worker's log --------------------------------------------------------------------------


def log_fields(claimed: JobRecord, fence: Fence) -> dict[str, object]:
    """Return the fields of every log line about an attempt."""
    definition, head = claimed
    return {
        "job": definition.id,
        "type": f"{definition.service}/{definition.type}",
        "attempt": head.attempt,
        "attempt_id": fence.attempt_id,
        "trace": definition.context.trace_id,
    }


def log_settlement(claimed: JobRecord, fence: Fence, result: Result) -> None:
    """Log how an attempt ended that did not complete, or that its result was refused."""
    fields = log_fields(claimed, fence)
    match result:
        case Applied(record, at):
            error = record.head.error
            stack = None if error is None else error.detail
            _log(fields, _level(record), _words(record, at), stack)
        case Stale(head):
            words = (
                f"{_STALE}: the attempt had ended before, so its result was ignored. "
                f"The job is {head.state}."
            )
            _log({**fields, "event": _STALE}, logging.WARNING, words)
        case _:
            pass


def log_lost(claimed: JobRecord, fence: Fence, head: Head | None) -> None:
    """Log that a handler is stopped because its attempt was ended elsewhere.

    `head` is the job as it is now; None if it could not be read.
    """
    now = "" if head is None else f" The job is {head.state}."
    words = f"{_LOST}: another process ended the attempt, so its handler is asked to stop.{now}"
    _log({**log_fields(claimed, fence), "event": _LOST}, logging.WARNING, words)


def _log(fields: Mapping[str, object], level: int, words: str, stack: str | None = None) -> None:
    if not _logger.isEnabledFor(level):
        return
    values = (fields["type"], fields["job"], fields["attempt"], words)
    record = _logger.makeRecord(
        _logger.name, level, __file__, 0, "%s %s attempt %s: %s", values, None,
        extra={"trellis": fields},
    )  # fmt: skip
    # Every formatter of `logging` writes this text after the message. The exception itself is not
    # here: it may have been raised in another process.
    record.exc_text = stack and stack.rstrip()
    _logger.handle(record)


def _level(record: JobRecord) -> int:
    if record.head.state in _FAILURE_STATES:
        return logging.ERROR
    return logging.WARNING if record.head.error is not None else logging.INFO


def _words(record: JobRecord, at: Instant) -> str:
    head = record.head
    why = "" if head.error is None else f"{_sentence(head.error.message)} "
    if head.blocked:
        return f"{why}The job holds its key until an operator releases it."
    if head.state is not State.RETRY:
        return f"{why}The job is {head.state}."
    if head.error is None:
        return "The job was handed back."
    wait = max(0, head.run_at - at)  # a suspect keeps the time at which it was first due
    return f"{why}Next try in {roughly(wait)}."


def _sentence(message: str) -> str:
    """Return the first line of a message as a sentence, so that another can follow."""
    line = next(iter(message.splitlines()), "").rstrip()
    return line if line.endswith((".", "!", "?", ":")) else f"{line}."


# -- texts that can be stored ------------------------------------------------------------------


def storable(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Return the text without NUL and lone surrogates, cut to the limit."""
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text) - limit:,} more characters)"
    if text.isascii():
        return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text
    clean = text.encode("utf-8", "replace").decode()
    return clean.replace("\0", "\N{REPLACEMENT CHARACTER}")


def storable_report(call: str, name: str, value: object, limit: int = _TEXT_LIMIT) -> str:
    """Return a text that a handler reports, fit to be stored; raise `TypeError` for no text."""
    if not isinstance(value, str):
        raise TypeError(
            f"{call}: {name}={shown(value)} is not a text. Nothing was reported. Write a text, "
            f"for example {name}='pages'."
        )
    return storable(value, limit)


def storable_json(value: object, limit: int = _TEXT_LIMIT) -> str:
    """Return a value as JSON text; what JSON does not have is written as text."""
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        return json.dumps({"dropped": f"what cannot be written as JSON: {error}"})
    # json.dumps escapes every other character, so only the size and an escaped NUL matter.
    if len(text) > limit or "\\u0000" in text:
        return json.dumps({"dropped": f"{len(text)} characters of fields that cannot be stored"})
    return text
