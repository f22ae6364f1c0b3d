"""Turns what a handler did into the command that settles its attempt."""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from typing import Final

from trellis.core import commands
from trellis.core.commands import FencedCommand
from trellis.core.durations import SECOND, Micros, in_words
from trellis.core.items import settle_return
from trellis.core.job import Failure, Fence
from trellis.core.retry import Backoff
from trellis.declaration import checks
from trellis.declaration.handler_exceptions import Cancelled, Fail, RetryIn, Snooze, Stopped
from trellis.errors import PayloadInvalid, PayloadTooNew, PreconditionFailed
from trellis.worker.attempt import Attempt, Stop
from trellis.worker.log import storable, storable_json

_random = random.Random()  # noqa: S311 - jitter needs no cryptography
_STACK_FRAMES: Final = 20
#: How long a job of a newer program is handed back: twice as long after each claim.
_NEWER_DELAY: Final = 5 * SECOND
_LONGEST_NEWER_DELAY: Final = 600 * SECOND
_MOST_DOUBLINGS: Final = 10
#: What a handler raises because it was stopped: the reason for the stop decides.
ANSWERS_TO_STOP: Final = (asyncio.CancelledError, Cancelled, Stopped)
_logger = logging.getLogger(__name__)


def returned(attempt: Attempt, result: object) -> FencedCommand:
    """Settle an attempt whose handler returned."""
    text: str | None = None
    if result is not None or not attempt.type.may_return_nothing:
        try:
            text = attempt.type.encode(result, "result")
        except PayloadInvalid as error:
            why = "" if result is not None else " The handler returned None: is a `return` missing?"
            return failed_permanently(attempt, "result_invalid", f"{error}{why}")
    if not attempt.items:
        return commands.build_complete(attempt.fence, text, 0, attempt.started_at)
    return settle_return(attempt.fence, text, attempt.items, attempt.started_at, _random.random())


def raised(attempt: Attempt, error: BaseException) -> FencedCommand | None:
    """Settle an attempt whose handler raised; None if this worker must not settle it."""
    fence, started_at = attempt.fence, attempt.started_at
    match error:
        case Cancelled() | Stopped() if attempt.stop_reason is not None:
            return stopped(attempt, attempt.stop_reason, ended=True)
        case Stopped():
            return commands.Snooze(fence, 0, started_at)
        case Snooze():
            return commands.Snooze(fence, error.delay, started_at)
        case Fail():
            message = str(error) or "The handler raised Fail."
            data = None if error.data is None else storable_json(error.data)
            return failed_permanently(attempt, error.code, message, _stack(error), data)
        case PreconditionFailed() if error.job_id == attempt.record.definition.id:
            return failed_permanently(attempt, error.code, str(error))
        case Cancelled():
            failure = Failure("cancelled", storable(str(error) or "The handler raised Cancelled."))
            return commands.Fail(fence, failure, cancelled=True, started_at=started_at)
        case RetryIn():
            message = str(error) or f"The handler asked to be retried in {in_words(error.delay)}."
            failure = Failure("retry_in", storable(message))
            return commands.Fail(fence, failure, delay=error.delay, started_at=started_at)
        case _:
            failure = Failure("exception", storable(_words(error), 2048), _stack(error))
            retry = attempt.type.job_type.policy.retry
            return commands.Fail(
                fence,
                failure,
                retryable=retry.allows(error),
                delay=None if retry.backoff is None else _delay(attempt, retry.backoff, error),
                roll=_random.random(),
                started_at=started_at,
            )


def _delay(attempt: Attempt, backoff: Backoff, error: BaseException) -> Micros | None:
    """Return the delay that the program's function computes; None if it fails or has none."""
    try:
        asked = backoff(attempt.record.head.attempt, error)
        return None if asked is None else checks.duration("backoff", asked)
    except Exception:
        definition = attempt.record.definition
        _logger.exception(
            "The backoff function of %s/%s failed after attempt %d at job %s; the delay of the "
            "policy is used.",
            definition.service, definition.type, attempt.record.head.attempt, definition.id,
        )  # fmt: skip
        return None


def unreadable(attempt: Attempt, error: PayloadInvalid) -> FencedCommand:
    """Settle an attempt whose payload cannot be read; the handler was not called.

    A payload of a newer program is handed back uncounted, later each time, until a worker with the
    newer code takes it.
    """
    if not isinstance(error, PayloadTooNew):
        return failed_permanently(attempt, error.code, str(error))
    claims = min(attempt.record.head.claims, _MOST_DOUBLINGS)
    delay = min(_NEWER_DELAY << (claims - 1), _LONGEST_NEWER_DELAY)
    _logger.warning(
        "Job %s is handed back uncounted for %s: %s",
        attempt.record.definition.id, in_words(delay), error,
    )  # fmt: skip
    return commands.Snooze(attempt.fence, delay)


def not_loaded(fence: Fence, error: BaseException) -> FencedCommand:
    """Settle an attempt whose handler could not be set up in its handler process."""
    message = (
        "The handler could not be set up in its handler process, which must be able to import the "
        f"same modules as the worker: {_words(error)}"
    )
    failure = Failure("not_loaded", storable(message, 2048), _stack(error))
    return commands.Fail(fence, failure, roll=_random.random())


def not_started(attempt: Attempt, delay: Micros) -> FencedCommand:
    """Settle an attempt for which no process could be started; the job did not cause this."""
    return commands.Snooze(attempt.fence, delay)


def not_stored(attempt: Attempt, delay: Micros, *, ended: bool) -> FencedCommand:
    """Hand back an attempt whose outcome could not be stored; the job did not cause this.

    `ended` is False while the handler may still run.
    """
    fence, started_at = attempt.fence, attempt.started_at
    if ended:
        return commands.Snooze(fence, delay, started_at)
    return commands.Release(fence, begun=False, started_at=started_at, stopped=False)


def crashed(attempt: Attempt, evidence: str) -> FencedCommand:
    """Settle an attempt whose process died while it ran no other attempt."""
    return commands.Crash(attempt.fence, storable(evidence, 4096), roll=_random.random())


def failed_permanently(
    attempt: Attempt,
    code: str,
    message: str,
    detail: str | None = None,
    data: str | None = None,
) -> FencedCommand:
    """Settle an attempt that failed so that a retry cannot help."""
    failure = Failure(storable(code, 64), storable(message, 2048), detail, data)
    return commands.Fail(attempt.fence, failure, retryable=False, started_at=attempt.started_at)


def stopped(attempt: Attempt, reason: Stop, *, ended: bool) -> FencedCommand | None:
    """Settle an attempt that was stopped; None if this worker must not settle it.

    `ended` is False while the handler may still run (in a thread, which cannot be interrupted).
    """
    fence, started_at, roll = attempt.fence, attempt.started_at, _random.random()
    match reason:
        case Stop.LOST:
            return None
        case Stop.SHUTDOWN:
            begun = started_at is not None
            return commands.Release(fence, begun, started_at, stopped=ended)
        case Stop.REPLACED:
            return commands.Release(fence, begun=False, started_at=started_at, stopped=ended)
        case Stop.UNREACHABLE:
            message = "The engine was unreachable for a whole lease, and the job holds a key."
            return commands.LoseLease(fence, message, roll, stopped=ended)
        case Stop.TIMEOUT:
            timeout = in_words(attempt.record.definition.policy.timeout or 0)
            failure = Failure("timeout", f"The attempt took longer than {timeout}.")
            return commands.Fail(fence, failure, roll=roll, started_at=started_at, stopped=ended)


def _words(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _stack(error: BaseException) -> str:
    """Return the stack without the frames of the worker."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(
        "trellis.worker."
    ):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-_STACK_FRAMES)
    return storable("".join(lines))
