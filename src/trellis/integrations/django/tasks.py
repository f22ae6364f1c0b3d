"""A backend for Django's Tasks API: `@task` functions become jobs that any worker runs.

    TASKS = {"default": {"BACKEND": "trellis.integrations.django.tasks.TrellisBackend"}}

Inside `transaction.atomic()` a task is stored by the commit of that transaction, if its jobs are
kept in the same database; no `transaction.on_commit` is needed. Otherwise it is stored at once.
`QUEUES` names the queues; `OPTIONS` may have any policy of a job type: `{"timeout": "10m"}`.

Each queue of a backend is one job type. The types are declared when Django starts, because a worker
must know a type before its first job is created; the task is imported when it is called.
"""

# ruff: noqa: ANN401 - the Tasks API has no types that hold for both packages
from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from django.conf import settings  # type: ignore[import-untyped]
from django.core import checks  # type: ignore[import-untyped]
from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from django.utils import timezone  # type: ignore[import-untyped]
from django.utils.module_loading import import_string  # type: ignore[import-untyped]

from trellis.cli.loading import load_service
from trellis.client.job import Job
from trellis.client.requests import CreateOptions
from trellis.client.transactions import is_open
from trellis.core.retry import Retry
from trellis.declaration.handler_exceptions import Cancelled, Fail, RetryIn, Snooze, Stopped
from trellis.errors import CalledFromLoop, TrellisError
from trellis.integrations.django.configuration import (
    configured,
    database_url,
    is_in_memory,
    joined_alias,
    service_name,
)
from trellis.integrations.django.task_translation import (
    TaskCall,
    aware,
    call_of,
    django_time,
    error_of,
    find_task,
    load_job,
    result_of,
    task_of,
    trellis_priority,
)
from trellis.integrations.django.tasks_api import (
    DEFAULT_ALIAS,
    BaseTaskBackend,
    InvalidTask,
    TaskContext,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from trellis.portal import call as wait_for
from trellis.service import Service
from trellis.worker.active_job import ActiveJob

# -- enqueueing ----------------------------------------------------------------------------------


class TrellisBackend(BaseTaskBackend):  # type: ignore[misc] # its base has no types
    """Stores tasks as jobs of the service that TRELLIS names in the settings."""

    supports_defer: ClassVar = True
    supports_async_task: ClassVar = True
    supports_get_result: ClassVar = True
    supports_priority: ClassVar = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._service: Service | None = None
        if not self.queues:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] allows any queue, but workers must know their queues when they "
                "start. Name them: 'QUEUES': ['default', 'emails']."
            )

    @property
    def service(self) -> Service:
        """The service whose jobs its tasks are."""
        # Loaded on first use: the module of the service may be declaring a task when the backend
        # is made.
        if self._service is None:
            self._service = load_service(service_name().text)
        return self._service

    def declare(self) -> None:
        """Declare the job types of all its queues."""
        for queue in sorted(self.queues):
            self._job(queue)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store a task for a worker, in the open transaction if it can be joined."""
        _refuse_in_loop("enqueue")
        self.validate_task(task)
        try:
            find_task(task.module_path)  # a task that no worker would find is refused here
        except TrellisError as error:
            raise InvalidTask(str(error)) from error
        result = TaskResult(
            task=task, id="", status=TaskResultStatus.READY, enqueued_at=timezone.now(),
            started_at=None, last_attempted_at=None, finished_at=None, args=list(args),
            kwargs=dict(kwargs), backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip
        call = call_of(task, result.args, result.kwargs)
        ref = self._job(task.queue_name).create_sync(call, **self._options(task))
        result = replace(result, id=ref.id)
        task_enqueued.send(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task; raise if there is no task of this id."""
        _refuse_in_loop("get_result")
        stored = wait_for(load_job, self.service.connection, result_id)
        if stored is None:
            raise TaskResultDoesNotExist(result_id)
        definition = stored.record.definition
        for job_type in (self._job(queue).job_type for queue in self.queues):
            if (definition.service, definition.type) == (job_type.service, job_type.name):
                return result_of(stored, job_type.payload.decode(definition.payload))
        raise TaskResultDoesNotExist(result_id)  # a job, but not a task of this backend

    def check(self, **_: Any) -> list[Any]:
        """Return what would prevent tasks from being stored, without opening a database."""
        try:
            self.declare()
            alias = joined_alias()
            if alias is None or not is_in_memory(alias):
                str(self.service.url)
        except TrellisError as error:
            return [checks.Error(str(error), obj=f"TASKS[{self.alias!r}]", id="trellis.E001")]
        return []

    def _job(self, queue: str) -> Job[Any, Any]:
        """Return the job type for the tasks of a queue; declare it if necessary.

        A failed task is not retried unless `OPTIONS` says so, as Django describes tasks.
        """
        name = f"task-{queue}" if self.alias == DEFAULT_ALIAS else f"task-{self.alias}-{queue}"
        if any(each.name == name for each in self.service.job_types):
            return self.service.find(name)
        defaults = {"retry": Retry.never(), "dead_letters": False, **self.service.defaults}
        policies: Any = {**defaults, **self.options, "name": name, "queue": queue}
        return self.service.job(**policies)(run_task)

    def _options(self, task: Any) -> CreateOptions:
        priority = trellis_priority(task.priority)
        options: CreateOptions = {"priority": priority, "tags": {"task": task.name}}
        if task.run_after is not None:
            options["at"] = aware(task.run_after)
        alias = joined_alias()
        if alias is not None and is_open(connections[alias]) and self._keeps_jobs_in(alias):
            options["tx"] = connections[alias]
        return options

    def _keeps_jobs_in(self, alias: str) -> bool:
        """Return whether a commit there can store jobs: the service may have another URL."""
        if is_in_memory(alias):
            return False
        return self.service.url == database_url(alias, configured("OPTIONS"))


def _refuse_in_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise CalledFromLoop(
        f"{name}() was called in a running event loop and would block everything on it. Write: "
        f"await a{name}(...)"
    )


def declare_task_types() -> None:
    """Declare the job types of every Trellis backend in TASKS."""
    for alias, params in settings.TASKS.items():
        try:
            backend = import_string(params["BACKEND"])
        except ImportError:
            continue  # Django reports it when the backend is used
        if issubclass(backend, TrellisBackend):
            task_backends[alias].declare()


# -- running -------------------------------------------------------------------------------------


def run_task(job: ActiveJob[TaskCall]) -> Any:
    """Call the task in this thread, an asynchronous one, too; return plain JSON values."""
    call = job.payload
    task = task_of(call)
    result = _running_result(task, job)
    backend = type(task.get_backend())
    task_started.send(sender=backend, task_result=result)
    context = [TaskContext(task_result=result)] if task.takes_context else []
    try:
        value = normalize_json(task.call(*context, *call.args, **call.kwargs))
    except BaseException as error:
        result.errors.append(error_of(error, "".join(traceback.format_exception(error))))
        if _is_last_attempt(error, job):
            _finish(result, TaskResultStatus.FAILED)
            task_finished.send(sender=backend, task_result=result)
        raise
    object.__setattr__(result, "_return_value", value)
    _finish(result, TaskResultStatus.SUCCESSFUL)
    task_finished.send(sender=backend, task_result=result)
    return value


def _running_result(task: Any, job: ActiveJob[TaskCall]) -> Any:
    """Return the result that a running task sees; it counts attempts by their worker ids."""
    now = timezone.now()
    return TaskResult(
        task=task,
        id=job.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=django_time(job.created_at),
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=job.payload.args,
        kwargs=job.payload.kwargs,
        backend=job.payload.backend,
        errors=[],
        # Only the engine knows the workers of earlier attempts; see get_result().
        worker_ids=[job.attempt_id[:16]] * job.attempt,
    )


def _is_last_attempt(error: BaseException, job: ActiveJob[TaskCall]) -> bool:
    match error:
        case Fail() | Cancelled():
            return True
        case Snooze() | RetryIn() | Stopped():
            return False
        case _:
            return job.attempt >= job.max_attempts


def _finish(result: Any, status: Any) -> None:
    """Change a frozen result, as Django's backends do."""
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
