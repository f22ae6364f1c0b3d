"""Loading services by `module:variable`, from the current folder.

The names come from the command line, else from `TRELLIS_APP`, else from `app` in the project's
settings file; then the folder of that file is searched, too. Modules that a service includes are
loaded with it. A Django project (`DJANGO_SETTINGS_MODULE`) is set up first and may name its service
in its settings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from trellis.config import Setting, sources
from trellis.declaration.imports import prepare_project
from trellis.errors import ConfigurationError, TrellisError, UnknownService
from trellis.service import Service

_APP = "TRELLIS_APP"


def load_services(names: Sequence[str] | None = None) -> list[Service]:
    """Return the services of these names, or those of the settings, without repetitions."""
    prepare_project()
    if names:
        return _unique(load_service(one) for name in names for one in _split(name))
    found = sources().get(_APP)
    if found is None:
        raise ConfigurationError(
            "No service is named. Write it as module:variable, like hello:app, set TRELLIS_APP, "
            'or put app = "hello:app" into trellis.toml or the [tool.trellis] section of '
            "pyproject.toml."
        )
    _search_folder_of(found)
    try:
        return _unique(load_service(name) for name in _split(found.text))
    except ConfigurationError as error:
        raise type(error)(f"{found.origin}: {error}") from error


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _unique(services: Iterator[Service]) -> list[Service]:
    return list(dict.fromkeys(services))


def _search_folder_of(found: Setting) -> None:
    """Make modules beside the settings file importable from every folder below it."""
    if Path(found.origin).is_absolute():  # a file
        folder = str(Path(found.origin).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)


def load_service(name: str) -> Service:
    """Import the module and return the service; an error says what is missing."""
    module_name, separator, variable = name.partition(":")
    if not separator or not module_name or not variable:
        raise ConfigurationError(
            f"{name!r} does not name a service. Write the module and its variable, like "
            f"{module_name.removesuffix('.py') or 'hello'}:app."
        )
    module_name = _module_name(module_name, variable)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = value = _import(module_name)
    for part in variable.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Service):
        found = "has no such variable" if value is None else f"has a {type(value).__name__} there"
        raise UnknownService(
            f"{name!r} is not a service: {module_name} {found}. {_services_in(module, module_name)}"
        )
    load_included = getattr(value, "load_included", None)
    if load_included is not None:
        load_included()
    return value


def _services_in(module: object, name: str) -> str:
    """Return a hint that names the variables of a module that hold services."""
    held = [f"{name}:{key}" for key, value in vars(module).items() if isinstance(value, Service)]
    if not held:
        return "Name the variable that holds your Service(...)."
    return f"Write {' or '.join(held)}."


def _module_name(written: str, variable: str) -> str:
    """Return the module; a file name without folders is accepted for it."""
    name = written.removesuffix(".py")
    if name == "__main__":
        raise ConfigurationError(
            f"__main__ is the running program, here the trellis command itself. Name the file "
            f"that defines your service: hello:{variable} for hello.py."
        )
    if "/" in name:
        dotted = ".".join(part for part in name.split("/") if part.strip("."))
        raise ConfigurationError(
            f"{written!r} is a path, and a service is imported from a module. Write "
            f"{dotted}:{variable}, or run this in the folder of the file."
        )
    return name


def _import(name: str) -> object:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise ConfigurationError(
                f"There is no module {name!r} here. Run this in the folder that has "
                f"{error.name}.py, or put that folder on PYTHONPATH."
            ) from error
        raise ConfigurationError(
            f"Importing {name!r} failed: it needs {error.name!r}, which is not installed. "
            "Install it for the Python that runs this command."
        ) from error
    except TrellisError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"Importing {name!r} failed with {type(error).__name__}: {error}. "
            "Run it again with --debug to see where."
        ) from error
