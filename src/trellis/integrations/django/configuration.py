"""What `TRELLIS` in the settings of a Django project says, and what holds where it says nothing.

Looked at when something is asked for, never at import, so tests may override it. A flag, a
`TRELLIS_*` variable and a settings file come first, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from django.conf import settings  # type: ignore[import-untyped]

from trellis.config import Setting
from trellis.errors import ConfigurationError
from trellis.integrations.django.database_url import database_url

_DEFAULTS: Final[Mapping[str, Any]] = {
    #: The service whose jobs `trellis worker` runs and that the Tasks API uses.
    "SERVICE": "trellis.integrations.django.service:app",
    #: Where jobs are kept; None: in the database below.
    "URL": None,
    #: The alias in DATABASES.
    "DATABASE": "default",
    #: What stands in the query of the URL made from the database: schema, pooler, wake, ...
    "OPTIONS": {},
}


def configured(name: str) -> Any:  # noqa: ANN401 - any setting's value
    """Return one setting; refuse what nobody would read."""
    said = getattr(settings, "TRELLIS", {})
    if not isinstance(said, Mapping):
        raise ConfigurationError(
            f"TRELLIS in the settings is {type(said).__name__}, not a dictionary. Write it like "
            "TRELLIS = {'SERVICE': 'shop.service:app'}."
        )
    for key in said:
        if key not in _DEFAULTS:
            near = get_close_matches(str(key).upper(), _DEFAULTS, 1)
            meant = f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(_DEFAULTS)}."
            raise ConfigurationError(f"TRELLIS in the settings has no {key!r}. {meant}")
    return said.get(name, _DEFAULTS[name])


def joined_alias() -> str | None:
    """Return the alias of the database that jobs are kept in; None if they are elsewhere."""
    return None if configured("URL") else str(configured("DATABASE"))


def jobs_url() -> Setting:
    """Return where jobs are kept if nobody else says so."""
    given = configured("URL")
    if given:
        return Setting(str(given), _origin())
    return Setting(database_url(configured("DATABASE"), configured("OPTIONS")), _origin())


def service_name() -> Setting:
    """Return the service as `module:variable`; Django's own way, with a dot, will do."""
    name = str(configured("SERVICE"))
    if ":" not in name:
        module, _, variable = name.rpartition(".")
        name = f"{module}:{variable}"
    return Setting(name, _origin())


def _origin() -> str:
    return f"TRELLIS in {getattr(settings, 'SETTINGS_MODULE', 'the settings')}"
