"""A Django task as the payload of a job: which function, with what, and how it was asked for.

The function is named by its path and must be found there as a task, so a payload can never make a
worker call anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings  # type: ignore[import-untyped]
from django.utils import timezone  # type: ignore[import-untyped]
from django.utils.module_loading import import_string  # type: ignore[import-untyped]

from trellis.core.admission import MAX_PRIORITY
from trellis.errors import ConfigurationError
from trellis.integrations.django.tasks_api import Task

_HIGHEST: Final = 100


@dataclass(frozen=True, slots=True)
class TaskCall:
    """What `enqueue` was called with."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    #: The alias in TASKS.
    backend: str
    queue_name: str
    priority: int
    run_after: datetime | None


def call_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> TaskCall:  # noqa: ANN401 - a Task
    """Return the payload for a task, with plain JSON values as arguments."""
    after = None if task.run_after is None else aware(task.run_after)
    return TaskCall(
        task.module_path, args, kwargs, task.backend, task.queue_name, task.priority, after
    )


def task_of(call: TaskCall) -> Any:  # noqa: ANN401 - a Task
    """Return the task as it was when it was enqueued."""
    return find_task(call.task).using(
        priority=call.priority,
        queue_name=call.queue_name,
        run_after=None if call.run_after is None else as_django(call.run_after),
        backend=call.backend,
    )


def find_task(path: str) -> Any:  # noqa: ANN401 - a Task
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
            f"{path} is no task, so a worker would not find it. Decorate the function where it is "
            "defined, under its own name: @task."
        )
    return found


def band(priority: int) -> int:
    """Return one of our nine priorities for Django's two hundred and one; 0 stays 0.

    >>> [band(each) for each in (-100, -1, 0, 1, 25, 26, 100)]
    [-4, -1, 0, 1, 1, 2, 4]
    """
    width = _HIGHEST // MAX_PRIORITY
    size = -(-abs(priority) // width)
    return size if priority > 0 else -size


def aware(moment: datetime) -> datetime:
    """Return a moment of Django's with its time zone, also where the project uses none."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def as_django(moment: datetime) -> datetime:
    """Return a moment the way `timezone.now()` would."""
    return moment if settings.USE_TZ else timezone.make_naive(moment)
