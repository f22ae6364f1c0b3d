"""What a worker's own log says about jobs: one line for each attempt that did not complete.

Every line carries the job, the attempt and the trace as fields (`log_fields`), whatever the format
of the log. Attempts that complete are counted, not told.
"""

from __future__ import annotations

import logging
from typing import Final

from trellis.control import Applied, Result
from trellis.core.job import JobRecord
from trellis.core.lifecycle import Stale
from trellis.core.spans import SECOND, in_words
from trellis.core.states import State
from trellis.worker.attempt import Attempt

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
