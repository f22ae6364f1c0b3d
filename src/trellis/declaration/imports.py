"""Imports by name: handlers in another process, included modules, and the project's framework.

A process that runs one handler imports it by module and name. `isolation="process"` is therefore
refused for a handler in `__main__`, which is another module in that process, or inside a function.

`include=[...]` names modules with handlers that nothing else imports. They are imported when a
worker or a tool loads the service, not when the service is made, because they import the service.

Django must be set up before the models of a project can be imported; `DJANGO_SETTINGS_MODULE` shows
whether it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from trellis.declaration import checks
from trellis.declaration.job_type import JobType
from trellis.declaration.worker_location import Lifespan
from trellis.errors import ConfigurationError, TrellisError

_DJANGO: Final = "DJANGO_SETTINGS_MODULE"

# -- handlers ----------------------------------------------------------------------------------


class HandlerName(NamedTuple):
    """The module and the qualified name under which a handler is defined."""

    module: str
    name: str


def importable(job_type: JobType) -> HandlerName:
    """Return the name of this type's handler; raise `ConfigurationError` if it has none."""
    function = job_type.handler.function if job_type.handler is not None else None
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    if module == "__main__":
        raise _refusal(
            job_type,
            "it is defined in the program's main file, which is another module there. Move it "
            "to another module and start the worker with: trellis worker your_module:service",
        )
    if _job_type_at(module, name) is not job_type:
        raise _refusal(
            job_type,
            f"{module}.{name} is not this handler. Define it at the top level of a module.",
        )
    return HandlerName(module, name)


def find_handler(name: HandlerName) -> JobType:
    """Return the job type whose handler is defined under this name, importing its module."""
    prepare_project()
    import_module(name.module)
    job_type = _job_type_at(*name)
    if job_type is None:
        raise ConfigurationError(
            f"There is no job at {name.module}.{name.name} in this process. "
            "Define its handler at the top level of a module, under one name."
        )
    return job_type


def importable_lifespan(service: str, make: Lifespan) -> HandlerName:
    """Return the name of this lifespan; raise `ConfigurationError` if it has none."""
    module = getattr(make, "__module__", None) or ""
    name = getattr(make, "__qualname__", "")
    if module == "__main__" or _at(module, name) is not make:
        raise ConfigurationError(
            f"A handler of {service} may run in a separate process, which cannot find the "
            f"service's lifespan: {module}.{name} is another object there. Define it at the top "
            "level of a module other than the program's main file."
        )
    return HandlerName(module, name)


def around_modules(job_type: JobType) -> list[str]:
    """Return the modules that add the surroundings of a service, which a process must import."""
    modules = {each.function.__module__ for each in job_type.extensions.arounds}
    if "__main__" in modules:
        raise ConfigurationError(
            f"A handler of {job_type.service} may run in a separate process, which cannot find "
            "what @service.around decorates in the program's main file. Move it to another module."
        )
    return sorted(modules)


def find_lifespan(name: HandlerName) -> Lifespan:
    """Return the lifespan that is defined under this name, importing its module."""
    import_module(name.module)
    make: Lifespan = attrgetter(name.name)(sys.modules[name.module])
    return make


def _job_type_at(module: str, name: str) -> JobType | None:
    job_type = getattr(_at(module, name), "job_type", None)
    return job_type if isinstance(job_type, JobType) else None


def _at(module: str, name: str) -> object:
    try:
        return attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return None


def _refusal(job_type: JobType, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"isolation='process' runs {job_type.service}/{job_type.name} in a separate process, "
        f"which cannot find the handler: {why}"
    )


# -- included modules --------------------------------------------------------------------------


def check_included(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the modules; raise `ConfigurationError` if one is wrong."""
    if isinstance(modules, str):
        raise ConfigurationError(
            f"include={modules!r} is one text. Write a list of modules: include=[{modules!r}]."
        )
    for module in modules:
        if checks.text("include", module, "shop.jobs").startswith(".") or not module:
            raise ConfigurationError(
                f"include names {module!r}, which is not a module. Write its full name, like "
                "include=['shop.jobs']."
            )
    return tuple(modules)


def import_included(service: str, module: str) -> None:
    """Import one module that this service includes."""
    what = f"Service {service!r} includes the module {module!r}"
    try:
        import_module(module)
    except TrellisError as error:
        raise ConfigurationError(f"{what}, which cannot be loaded: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"{what}, but there is no module {error.name!r}. Correct include=[...], or put the "
                "folder that contains it on PYTHONPATH."
            ) from error
        raise ConfigurationError(
            f"{what}, which needs {error.name!r}, and that is not installed."
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{what}, and importing it failed with {type(error).__name__}: {error}."
        ) from error


# -- the framework of the project --------------------------------------------------------------


def prepare_project() -> None:
    """Set up Django, once, if it is installed and `DJANGO_SETTINGS_MODULE` is set."""
    settings = os.environ.get(_DJANGO)
    if not settings or find_spec("django") is None or import_module("django.apps").apps.ready:
        return
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        import_module("django").setup()
    except TrellisError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{_DJANGO} is {settings}, but Django could not be set up: {type(error).__name__}: "
            f"{error}. Run this in the folder of manage.py, or unset {_DJANGO} if this is not a "
            "Django project."
        ) from error
