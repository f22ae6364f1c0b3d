"""Modules that belong to a service though nothing imports them: handlers defined elsewhere.

They are imported when a worker or a tool loads the service, never when it is made, because they
import the service themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from trellis.contract import given
from trellis.errors import ConfigurationError, TrellisError


def check_included(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the modules, or say what is wrong with them."""
    if isinstance(modules, str):
        raise ConfigurationError(
            f"include={modules!r} is one text. Write a list of modules: include=[{modules!r}]."
        )
    for module in modules:
        if given.text("include", module, "shop.jobs").startswith(".") or not module:
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
