"""Finding a handler again in another process: by the module and the name it was defined under.

A child process that runs one handler imports it by name, so `isolation="process"` is refused where
that cannot work: in `__main__`, which is another module in the child, or inside a function.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from sys import modules
from typing import NamedTuple

from trellis.contract.declaration import JobType
from trellis.contract.home import Lifespan
from trellis.contract.project import prepare_project
from trellis.errors import ConfigurationError


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
