"""Which failures of a run a test must hear of: all that it has not planned.

A handler that asked to be called again (`RetryIn`) has not failed until its attempts are used up.
"""

from __future__ import annotations

from collections.abc import Sequence

from trellis.contract.raised import RetryIn
from trellis.core.states import State
from trellis.testing.sandbox_engine import FailedAttempt
from trellis.testing.sandbox_errors import HandlerFailed
from trellis.testing.sandbox_handlers import Handlers, Raised


def unplanned(failed: Sequence[FailedAttempt], handlers: Handlers) -> HandlerFailed | None:
    """Return what to raise for the failures of a run, caused by the first; None if all is well."""
    seen = [(each, handlers.seen(each.definition.id, each.attempt)) for each in failed]
    first: Raised | None = None
    texts: list[str] = []
    for attempt, raised in seen:
        if _is_expected(attempt, raised):
            continue
        first = raised if not texts else first
        texts.append(_describe(attempt))
    if not texts:
        return None
    more = f" And {len(texts) - 1} more, see failures." if len(texts) > 1 else ""
    error = HandlerFailed(
        f"{texts[0]}{more} Plan a failure with fail_next, or let them be with "
        "run_all(raise_errors=False).",
        texts,
    )
    error.__cause__ = None if first is None else first.error
    return error


def _is_expected(attempt: FailedAttempt, raised: Raised | None) -> bool:
    if raised is None:
        return False
    return raised.planned or (isinstance(raised.error, RetryIn) and attempt.state is State.RETRY)


def _describe(failed: FailedAttempt) -> str:
    definition = failed.definition
    attempts = definition.policy.retry.attempts
    sentence = (
        f"Attempt {failed.attempt} of {attempts} at {definition.service}/{definition.type} "
        f"(job {definition.id}) failed: {failed.error.message}"
    )
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
