"""The names of Django's Tasks API: from Django 6, else from the package `django-tasks`.

Both have the same names, except for one exception class. A project on Django 6 that still has
`django_tasks` in INSTALLED_APPS declares its tasks with that package, so the package is used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from django.conf import settings  # type: ignore[import-untyped]

from trellis.errors import ConfigurationError


def _package() -> str:
    if find_spec("django.tasks") is not None and "django_tasks" not in settings.INSTALLED_APPS:
        return "django.tasks"
    if find_spec("django_tasks") is None:
        raise ConfigurationError(
            "This Django has no Tasks API. Upgrade to Django 6, or install the package that has "
            "it: pip install django-tasks"
        )
    return "django_tasks"


_NAME: Final = _package()
_base: Final = import_module(f"{_NAME}.base")
_exceptions: Final = import_module(f"{_NAME}.exceptions")
_signals: Final = import_module(f"{_NAME}.signals")

BaseTaskBackend: Final[Any] = import_module(f"{_NAME}.backends.base").BaseTaskBackend
task_backends: Final[Any] = import_module(_NAME).task_backends
DEFAULT_ALIAS: Final[str] = _base.DEFAULT_TASK_BACKEND_ALIAS
Task: Final[Any] = _base.Task
TaskContext: Final[Any] = _base.TaskContext
TaskError: Final[Any] = _base.TaskError
TaskResult: Final[Any] = _base.TaskResult
TaskResultStatus: Final[Any] = _base.TaskResultStatus
normalize_json: Final[Any] = _base.normalize_json
InvalidTask: Final[Any] = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Final[Any] = _exceptions.TaskResultDoesNotExist
task_enqueued: Final[Any] = _signals.task_enqueued
task_started: Final[Any] = _signals.task_started
task_finished: Final[Any] = _signals.task_finished
