"""Django's tasks as jobs: a call becomes a payload, and a stored job becomes a `TaskResult`.

A payload names the function by its path, and only a task is accepted there, so a payload cannot
make a worker call anything else. Django knows four states: a waiting job is READY, also between two
attempts; a job that ended without a result is FAILED and has at least one error.
"""

# ruff: noqa: ANN401 - the Tasks API has no types that hold for both packages
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.conf import settings  # type: ignore[import-untyped]
from django.utils import timezone  # type: ignore[import-untyped]
from django.utils.module_loading import import_string  # type: ignore[import-untyped]

from trellis.client.engine_access import EngineAccess
from trellis.core.admission import MAX_PRIORITY
from trellis.core.durations import to_datetime
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId, JobRecord
from trellis.core.states import SUCCEEDED, WAITING, State
from trellis.engines.values import Outcome
from trellis.errors import ConfigurationError
from trellis.integrations.django.tasks_api import Task, TaskError, TaskResult, TaskResultStatus

_MAX_DJANGO_PRIORITY: Final = 100
#: The message of an exception begins with its class, with the module unless it is a builtin.
_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*")
#: The exception class of a failure without an exception, by the state it led to.
_ENDINGS: Final[Mapping[State, str]] = {
    State.CANCELLED: "trellis.errors.JobCancelled",
    State.EXPIRED: "trellis.errors.JobExpired",
    State.DEAD: "trellis.errors.JobDead",
    State.SKIPPED: "trellis.errors.JobReplaced",
    State.DISMISSED: "trellis.errors.JobReplaced",
}
_FAILED: Final = "trellis.errors.JobFailed"


# -- calls ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskCall:
    """The payload: the task and the arguments of `enqueue`."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    #: The alias in TASKS.
    backend: str
    queue_name: str
    priority: int
    run_after: datetime | None


def call_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> TaskCall:
    """Return the payload for a task, with plain JSON values as arguments."""
    after = None if task.run_after is None else aware(task.run_after)
    return TaskCall(
        task.module_path, args, kwargs, task.backend, task.queue_name, task.priority, after
    )


def task_of(call: TaskCall) -> Any:
    """Return the task as it was when it was enqueued."""
    return find_task(call.task).using(
        priority=call.priority,
        queue_name=call.queue_name,
        run_after=None if call.run_after is None else django_time(call.run_after),
        backend=call.backend,
    )


def find_task(path: str) -> Any:
    """Import a task by its path."""
    try:
        found = import_string(path)
    except ImportError as error:
        raise ConfigurationError(
            f"There is no task {path} in this program: {error}. Start workers with the code that "
            "enqueues their tasks."
        ) from error
    if not isinstance(found, Task):
        raise ConfigurationError(
            f"{path} is not a task, so a worker would not find it. Decorate the function where it "
            "is defined, under its own name: @task."
        )
    return found


def trellis_priority(priority: int) -> int:
    """Return one of the nine priorities of Trellis for one of Django's 201; 0 stays 0.

    >>> [trellis_priority(each) for each in (-100, -1, 0, 1, 25, 26, 100)]
    [-4, -1, 0, 1, 1, 2, 4]
    """
    width = _MAX_DJANGO_PRIORITY // MAX_PRIORITY
    size = -(-abs(priority) // width)
    return size if priority > 0 else -size


def aware(moment: datetime) -> datetime:
    """Return a moment of Django with its time zone, also where the project uses none."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def django_time(moment: datetime) -> datetime:
    """Return a moment in the form of `timezone.now()`."""
    return moment if settings.USE_TZ else timezone.make_naive(moment)


# -- results -------------------------------------------------------------------------------------


class StoredJob(NamedTuple):
    """Everything that is stored about a job."""

    record: JobRecord
    journal: Sequence[Event]
    outcomes: Sequence[Outcome]


async def load_job(connection: EngineAccess, job_id: str) -> StoredJob | None:
    """Load everything about a job; None if there is none."""
    engine = await connection.engine()
    record = (await engine.load([JobId(job_id)])).records[0]
    if record is None:
        return None
    journal = await engine.journal(JobId(job_id))
    return StoredJob(record, journal, await engine.outcomes(JobId(job_id)))


def result_of(stored: StoredJob, call: TaskCall) -> Any:
    """Return the `TaskResult` of a stored job."""
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
        text = stored.outcomes[-1].result if stored.outcomes else None
        value = None if text is None else json.loads(text)
        object.__setattr__(result, "_return_value", value)
    return result


def error_of(error: BaseException, traceback: str) -> Any:
    """Return the `TaskError` of an exception."""
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


def _errors(stored: StoredJob) -> list[Any]:
    """Return one error per failed attempt, oldest first."""
    state = stored.record.head.state
    found = [
        _error(event.state, *failure[:3])
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


def _moment(instant: int) -> datetime:
    return django_time(to_datetime(instant))
