"""The framework a project is made with, set up before anything of the project is imported.

Only Django asks for that: its models cannot be imported before. It is known by the variable that
Django itself goes by, so other projects notice nothing.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from trellis.errors import ConfigurationError, TrellisError

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
