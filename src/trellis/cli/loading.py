"""Loading services by `module:variable`, from the current folder.

The names come from the command line, else from `TRELLIS_APP`, else from `app` in the project's
settings file; then the folder of that file is searched, too. Modules that a service includes are
loaded with it. A Django project (`DJANGO_SETTINGS_MODULE`) is set up first and may name its service
in its settings.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from sysconfig import get_paths
from traceback import walk_tb

import trellis
from trellis.config import Setting, sources
from trellis.declaration.imports import prepare_project
from trellis.errors import ConfigurationError, TrellisError, UnknownService
from trellis.service import Service

_APP = "TRELLIS_APP"
#: The folders of Python itself and of installed packages.
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def load_services(names: Sequence[str] | None = None) -> list[Service]:
    """Return the services of these names, or those of the settings, without repetitions."""
    prepare_project()
    if names:
        return _load_each(",".join(names))
    found = sources().get(_APP)
    if found is None:
        raise ConfigurationError(
            "No service is named. Write it as module:variable, like hello:app, set TRELLIS_APP, "
            'or put app = "hello:app" into trellis.toml or the [tool.trellis] section of '
            "pyproject.toml."
        )
    _search_folder_of(found)
    try:
        return _load_each(found.text)
    except ConfigurationError as error:
        raise type(error)(f"{found.origin}: {error}") from error


def _load_each(names: str) -> list[Service]:
    """Return the services of these names, separated by commas, each once."""
    services = [load_service(name.strip()) for name in names.split(",") if name.strip()]
    return list(dict.fromkeys(services)) or [load_service(names)]


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
            f"{_suggested(module_name, variable)}."
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


def _suggested(written: str, variable: str) -> str:
    """Return the name that may be meant if the module, the colon or the variable is missing."""
    module = _dotted(written.removesuffix(".py"))
    head, _, last = module.rpartition(".")
    is_variable = head and not _is_module(module) and _is_module(head)
    if is_variable and not variable:  # hello.app
        return f"{head}:{last}"
    return f"{module or 'hello'}:{variable or 'app'}"


def _is_module(name: str) -> bool:
    path = Path(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def _dotted(path: str) -> str:
    """Return the path of a file as the name of a module: `./shop/jobs` is `shop.jobs`."""
    return ".".join(part for part in path.split("/") if part.strip("."))


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
        raise ConfigurationError(
            f"{written!r} is a path, and a service is imported from a module. Write "
            f"{_dotted(name)}:{variable}, or run this in the folder of the file."
        )
    return name


def loaded_files(error: BaseException | None = None) -> set[str]:
    """Return the source files of the program: without those of Python, Trellis and packages.

    With an error, the files that were being loaded count too.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    while error is not None:
        files.add(error.filename if isinstance(error, SyntaxError) else None)
        files |= {frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)}
        error = error.__cause__ or error.__context__
    paths = get_paths()
    others = [Path(trellis.__file__).parent, *(Path(paths[name]) for name in _INSTALLED)]
    return {
        file
        for file in files
        if file is not None and file.endswith(".py")
        if not any(Path(file).is_relative_to(folder) for folder in others)
    }


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
