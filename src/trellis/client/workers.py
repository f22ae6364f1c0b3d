"""Whether anybody is there to do the work: so that waiting in vain can say why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from trellis.client.stand_in import current_stand_in
from trellis.contract.declaration import JobType
from trellis.engines.port import Engine


def missing_worker(engine: Engine, job_type: JobType) -> str:
    """Say how to get a job of this type done."""
    name = f"{job_type.service}/{job_type.name}"
    if current_stand_in() is not None:
        return f"Nothing runs by itself in a sandbox: call run_all() before you wait for {name}."
    if not engine.capabilities.processes:
        return (
            f"No worker for {name} is running, and its jobs live in this process only. "
            "Start one here: async with service.worker(): ..."
        )
    return f"No worker for {name} is running. Start one: trellis worker {_address(job_type)}"


def _address(job_type: JobType) -> str:
    """Return what to call the service on the command line; words to replace if nobody knows."""
    function = job_type.handler.function if job_type.handler is not None else None
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = None if module is None else _module_name(module)
    for name, value in list(vars(module).items()) if file else ():
        # Asking anything else for its types could run somebody's code.
        if type(value).__module__ == "trellis.service" and job_type in _types_of(value):
            return f"{file}:{name}"
    return "your_module:service"


def _types_of(service: object) -> tuple[object, ...]:
    types: tuple[object, ...] = getattr(service, "job_types", ())
    return types


def _module_name(module: ModuleType) -> str | None:
    """Return the name another program imports this module by."""
    if module.__name__ != "__main__":
        return module.__name__
    if module.__spec__ is not None:  # started with python -m
        return module.__spec__.name
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).stem
