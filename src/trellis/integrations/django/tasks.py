"""A backend for Django's own Tasks API: `@task` functions become jobs that any worker runs.

    TASKS = {"default": {"BACKEND": "trellis.integrations.django.tasks.TrellisBackend"}}

Inside `transaction.atomic()` a task is stored by the commit of that transaction, if its jobs are
kept in the same database; no `transaction.on_commit` is needed. Elsewhere it is stored at once.
`QUEUES` names the queues; `OPTIONS` may have any policy of a job type: `{"timeout": "10m"}`.
"""

# ruff: noqa: ANN401 - the Tasks API has no types that hold for both packages
from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from django.core import checks  # type: ignore[import-untyped]
from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from django.utils import timezone  # type: ignore[import-untyped]

from trellis.cli.loading import load_service
from trellis.client.job import Job
from trellis.client.requests import CreateOptions
from trellis.client.transactions import is_open
from trellis.errors import CalledFromLoop, TrellisError
from trellis.integrations.django.configuration import configured, joined_alias, service_name
from trellis.integrations.django.database_url import database_url, is_in_memory
from trellis.integrations.django.task_call import aware, band, call_of, find_task
from trellis.integrations.django.task_results import load, result_of
from trellis.integrations.django.task_types import task_job
from trellis.integrations.django.tasks_api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from trellis.portal import call as wait_for
from trellis.service import Service


class TrellisBackend(BaseTaskBackend):  # type: ignore[misc] # its base has no types
    """Keeps tasks as jobs of the service that TRELLIS names in the settings."""

    supports_defer: ClassVar = True
    supports_async_task: ClassVar = True
    supports_get_result: ClassVar = True
    supports_priority: ClassVar = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._service: Service | None = None
        if not self.queues:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] allows any queue, but workers must know theirs when they start. "
                "Name them: 'QUEUES': ['default', 'emails']."
            )

    @property
    def service(self) -> Service:
        """The service whose jobs its tasks are."""
        # Not when the backend is made: the module of the service may be declaring a task.
        if self._service is None:
            self._service = load_service(service_name().text)
        return self._service

    def declare(self) -> None:
        """Declare the job types of all its queues."""
        for queue in sorted(self.queues):
            self._job(queue)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store a task for a worker; in the open transaction, if there is one it can join."""
        _refuse_loops("enqueue")
        self.validate_task(task)
        _refuse_lost(task.module_path)
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
        """Return what is known about a task; raise if there is none of this id."""
        _refuse_loops("get_result")
        stored = wait_for(load, self.service.connection, result_id)
        if stored is None:
            raise TaskResultDoesNotExist(result_id)
        definition = stored.record.definition
        for job_type in (self._job(queue).job_type for queue in self.queues):
            if (definition.service, definition.type) == (job_type.service, job_type.name):
                return result_of(stored, job_type.payload.decode(definition.payload))
        raise TaskResultDoesNotExist(result_id)  # a job of another kind

    def check(self, **_: Any) -> list[Any]:
        """Say what would keep tasks from being stored, without opening anything."""
        try:
            self.declare()
            alias = joined_alias()
            if alias is None or not is_in_memory(alias):
                str(self.service.url)
        except TrellisError as error:
            return [checks.Error(str(error), obj=f"TASKS[{self.alias!r}]", id="trellis.E001")]
        return []

    def _job(self, queue: str) -> Job[Any, Any]:
        return task_job(self.service, self.alias, queue, self.options)

    def _options(self, task: Any) -> CreateOptions:
        options: CreateOptions = {"priority": band(task.priority), "tags": {"task": task.name}}
        if task.run_after is not None:
            options["at"] = aware(task.run_after)
        alias = joined_alias()
        if alias is not None and is_open(connections[alias]) and self._keeps_jobs_in(alias):
            options["tx"] = connections[alias]
        return options

    def _keeps_jobs_in(self, alias: str) -> bool:
        """Tell whether a commit there can store jobs: the service may have been sent elsewhere."""
        if is_in_memory(alias):
            return False
        return self.service.url == database_url(alias, configured("OPTIONS"))


def _refuse_lost(path: str) -> None:
    """Refuse a task that no worker would find, while its caller can still be told."""
    try:
        find_task(path)
    except TrellisError as error:
        raise InvalidTask(str(error)) from error


def _refuse_loops(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise CalledFromLoop(
        f"{name}() was called in a running event loop and would block everything on it. Write: "
        f"await a{name}(...)"
    )
