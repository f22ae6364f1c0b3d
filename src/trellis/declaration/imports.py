"""Finding a handler again in another process: by the module and the name it was defined under.

A child process that runs one handler imports it by name, so `isolation="process"` is refused where
that cannot work: in `__main__`, which is another module in the child, or inside a function.

Modules that belong to a service though nothing imports them: handlers defined elsewhere.

They are imported when a worker or a tool loads the service, never when it is made, because they
import the service themselves.

The framework a project is made with, set up before anything of the project is imported.

Only Django asks for that: its models cannot be imported before. It is known by the variable that
Django itself goes by, so other projects notice nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from sys import modules
from typing import Final, NamedTuple

from trellis.declaration import checks
from trellis.declaration.job_type import JobType
from trellis.declaration.worker_location import Lifespan
from trellis.errors import ConfigurationError, TrellisError


class HandlerName(NamedTuple):
    """Where a handler is defined."""

    module: str
    name: str


def importable(job_type: JobType) -> HandlerName:
    """Return the name another process finds this type's handler under, or say why there is none."""
    function = job_type.handler.function if job_type.handler is not None else None
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    if module == "__main__":
        raise _refusal(
            job_type,
            "it is defined in the program's main file, which is another module there. Move it "
            "into a module of its own and start the worker with trellis worker your_module:service",
        )
    if _job_type_at(module, name) is not job_type:
        raise _refusal(
            job_type, f"{module}.{name} does not lead to it. Define it at the top of a module"
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
            "Define its handler at the top of a module, under one name."
        )
    return job_type


def importable_lifespan(service: str, make: Lifespan) -> HandlerName:
    """Return the name another process finds this lifespan under, or say why there is none."""
    module = getattr(make, "__module__", None) or ""
    name = getattr(make, "__qualname__", "")
    if module == "__main__" or _at(module, name) is not make:
        raise ConfigurationError(
            f"A handler of {service} may run in a process of its own, which cannot find the "
            f"service's lifespan: {module}.{name} does not lead to it there. Define it at the top "
            "of a module other than the program's main file."
        )
    return HandlerName(module, name)


def find_lifespan(name: HandlerName) -> Lifespan:
    """Return the lifespan that is defined under this name, importing its module."""
    import_module(name.module)
    make: Lifespan = attrgetter(name.name)(modules[name.module])
    return make


def _job_type_at(module: str, name: str) -> JobType | None:
    job_type = getattr(_at(module, name), "job_type", None)
    return job_type if isinstance(job_type, JobType) else None


def _at(module: str, name: str) -> object:
    try:
        return attrgetter(name)(modules[module])
    except (AttributeError, KeyError):
        return None


def _refusal(job_type: JobType, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"isolation='process' runs {job_type.service}/{job_type.name} in a process of its own, "
        f"which cannot find the handler: {why}."
    )


def check_included(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the modules, or say what is wrong with them."""
    if isinstance(modules, str):
        raise ConfigurationError(
            f"include={modules!r} is one text. Write a list of modules: include=[{modules!r}]."
        )
    for module in modules:
        if checks.text("include", module, "shop.jobs").startswith(".") or not module:
            raise ConfigurationError(
                f"include names {module!r}, which is no module. Write its whole name, like "
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
                f"{what}, but there is no {error.name!r} here. Correct include=[...], or put the "
                "folder that has it on PYTHONPATH."
            ) from error
        raise ConfigurationError(
            f"{what}, which needs {error.name!r}, and that is not installed."
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{what}, and importing it failed with {type(error).__name__}: {error}."
        ) from error


_DJANGO: Final = "DJANGO_SETTINGS_MODULE"


def prepare_project() -> None:
    """Set up Django where `DJANGO_SETTINGS_MODULE` names settings; once, and nothing elsewhere."""
    named = os.environ.get(_DJANGO)
    if not named or find_spec("django") is None or import_module("django.apps").apps.ready:
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
            f"{_DJANGO} is {named}, but Django could not be set up: {type(error).__name__}: "
            f"{error}. Run this in the folder of manage.py, or unset {_DJANGO} if this is no "
            "Django project."
        ) from error
