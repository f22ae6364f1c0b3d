"""The job types behind Django's tasks: one per queue of a backend, with one handler for them all.

Workers must know a type before its first job comes, so types are declared when Django starts; the
task itself is imported when it is called. A failed task is not run again unless `OPTIONS` says so,
as Django's users expect of a task.
"""

# ruff: noqa: ANN401 - the Tasks API has no types that hold for both packages
from __future__ import annotations

import traceback
from typing import Any

from django.conf import settings  # type: ignore[import-untyped]
from django.utils import timezone  # type: ignore[import-untyped]
from django.utils.module_loading import import_string  # type: ignore[import-untyped]

from trellis.client.job import Job
from trellis.core.retry import Retry
from trellis.declaration.handler_exceptions import Cancelled, Fail, RetryIn, Snooze, Stopped
from trellis.integrations.django.task_call import TaskCall, as_django, task_of
from trellis.integrations.django.task_results import error_of
from trellis.integrations.django.tasks_api import (
    DEFAULT_ALIAS,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from trellis.service import Service
from trellis.worker.active_job import ActiveJob


def declare_task_types() -> None:
    """Declare the types of every backend of ours in TASKS."""
    from trellis.integrations.django.tasks import TrellisBackend  # noqa: PLC0415 - it imports us

    for alias, params in settings.TASKS.items():
        try:
            backend = import_string(params["BACKEND"])
        except ImportError:
            continue  # Django says so, and better, when it is used
        if issubclass(backend, TrellisBackend):
            task_backends[alias].declare()


def task_job(service: Service, alias: str, queue: str, options: dict[str, Any]) -> Job[Any, Any]:
    """Return the type for the tasks of a queue, declared if it was not."""
    name = f"task-{queue}" if alias == DEFAULT_ALIAS else f"task-{alias}-{queue}"
    if any(each.name == name for each in service.job_types):
        return service.find(name)
    usual = {"retry": Retry.never(), "dead_letters": False}
    policies: Any = {**usual, **service.defaults, **options, "name": name, "queue": queue}
    return service.job(**policies)(run_task)


def run_task(job: ActiveJob[TaskCall]) -> Any:
    """Call the task in this thread, also an asynchronous one, and return plain JSON values."""
    call = job.payload
    task = task_of(call)
    result = _running(task, job)
    backend = type(task.get_backend())
    task_started.send(sender=backend, task_result=result)
    given = [TaskContext(task_result=result)] if task.takes_context else []
    try:
        value = normalize_json(task.call(*given, *call.args, **call.kwargs))
    except BaseException as error:
        result.errors.append(error_of(error, "".join(traceback.format_exception(error))))
        if _is_last(error, job):
            _finish(result, TaskResultStatus.FAILED)
            task_finished.send(sender=backend, task_result=result)
        raise
    object.__setattr__(result, "_return_value", value)
    _finish(result, TaskResultStatus.SUCCESSFUL)
    task_finished.send(sender=backend, task_result=result)
    return value


def _running(task: Any, job: ActiveJob[TaskCall]) -> Any:
    """Return the result as the task sees it: it counts attempts by their workers."""
    now = timezone.now()
    return TaskResult(
        task=task,
        id=job.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=as_django(job.created_at),
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=job.payload.args,
        kwargs=job.payload.kwargs,
        backend=job.payload.backend,
        errors=[],
        # Who had the earlier attempts is known to the store only; see get_result().
        worker_ids=[job.attempt_id[:16]] * job.attempt,
    )


def _is_last(error: BaseException, job: ActiveJob[TaskCall]) -> bool:
    match error:
        case Fail() | Cancelled():
            return True
        case Snooze() | RetryIn() | Stopped():
            return False
        case _:
            return job.attempt >= job.max_attempts


def _finish(result: Any, status: Any) -> None:
    """Change what is frozen, as Django's own backends do."""
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
