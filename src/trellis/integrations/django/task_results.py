"""From a stored job to the `TaskResult` that Django's Tasks API describes it with.

Django knows four states. What waits is READY, also between two attempts; whatever ended without a
result is FAILED and has at least one error.
"""

# ruff: noqa: ANN401 - the Tasks API has no types that hold for both packages
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from trellis.client.engine_access import EngineAccess
from trellis.core.durations import to_datetime
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId, JobRecord
from trellis.core.states import SUCCEEDED, WAITING, State
from trellis.engines.values import Outcome
from trellis.integrations.django.task_call import TaskCall, as_django, task_of
from trellis.integrations.django.tasks_api import TaskError, TaskResult, TaskResultStatus

#: How the words of an exception begin: its class, with its module unless it is Python's own.
_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*")
#: The class of a failure without an exception, by the state it led to.
_ENDINGS: Final[Mapping[State, str]] = {
    State.CANCELLED: "trellis.errors.JobCancelled",
    State.EXPIRED: "trellis.errors.JobExpired",
    State.DEAD: "trellis.errors.JobDead",
    State.SKIPPED: "trellis.errors.JobReplaced",
    State.DISMISSED: "trellis.errors.JobReplaced",
}
_FAILED: Final = "trellis.errors.JobFailed"


class Stored(NamedTuple):
    """All that is stored about a job."""

    record: JobRecord
    journal: Sequence[Event]
    outcomes: Sequence[Outcome]


async def load(connection: EngineAccess, job_id: str) -> Stored | None:
    """Read everything about a job; None if there is none."""
    engine = await connection.engine()
    record = (await engine.load([JobId(job_id)])).records[0]
    if record is None:
        return None
    return Stored(record, await engine.journal(JobId(job_id)), await engine.outcomes(JobId(job_id)))


def result_of(stored: Stored, call: TaskCall) -> Any:
    """Return the result as Django's Tasks API has it."""
    definition, head = stored.record
    starts = [event for event in stored.journal if event.kind is EventKind.STARTED]
    status = _status(head.state)
    result = TaskResult(
        task=task_of(call),
        id=definition.id,
        status=status,
        enqueued_at=_moment(definition.created_at),
        started_at=_moment(starts[0].at) if starts else None,
        last_attempted_at=_moment(starts[-1].at) if starts else None,
        finished_at=None if head.finished_at is None else _moment(head.finished_at),
        args=call.args,
        kwargs=call.kwargs,
        backend=call.backend,
        errors=_errors(stored),
        worker_ids=[f"{event.fence.session:016x}" for event in starts if event.fence],
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", _value(stored.outcomes))
    return result


def error_of(error: BaseException, traceback: str) -> Any:
    """Return an exception as an error of a result."""
    kind = type(error)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=traceback
    )


def _status(state: State) -> Any:
    if state in WAITING:
        return TaskResultStatus.READY
    if state is State.ACTIVE:
        return TaskResultStatus.RUNNING
    return TaskResultStatus.SUCCESSFUL if state in SUCCEEDED else TaskResultStatus.FAILED


def _errors(stored: Stored) -> list[Any]:
    """Return one error per failed attempt, the oldest first."""
    state = stored.record.head.state
    found = [
        _error(event.state, *failure)
        for event in stored.journal
        if event.version and isinstance(failure := (event.data or {}).get("error"), list)
    ]
    if not found and _status(state) == TaskResultStatus.FAILED:
        found.append(_error(state, state.value, f"The task ended as {state}.", None))
    return found


def _error(state: State, code: Any, message: Any, detail: Any = None) -> Any:
    path = _ENDINGS.get(state, _FAILED)
    named = _CLASS.match(message) if code == "exception" else None
    if named is not None:
        path = named[0] if "." in named[0] else f"builtins.{named[0]}"
    return TaskError(exception_class_path=path, traceback=detail or message)


def _value(outcomes: Sequence[Outcome]) -> Any:
    text = outcomes[-1].result if outcomes else None
    return None if text is None else json.loads(text)


def _moment(instant: int) -> datetime:
    return as_django(to_datetime(instant))
