"""`TRELLIS` in the settings of a Django project, and the URL of the database that keeps its jobs.

Settings are read when they are needed, never at import, so that tests may override them. A flag, a
`TRELLIS_*` variable and a settings file come first, as everywhere. The URL is that of the database
Django writes to, also during a test run, so that `tx=connection` can join its transactions.
Database settings that a URL cannot express are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.conf import settings  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from django.utils.connection import ConnectionDoesNotExist  # type: ignore[import-untyped]

from trellis.config import Setting
from trellis.errors import ConfigurationError, UnsupportedDatabase

_DEFAULTS: Final[Mapping[str, Any]] = {
    #: The service whose jobs `trellis worker` runs and that the Tasks API uses.
    "SERVICE": "trellis.integrations.django.service:app",
    #: Where jobs are kept; None: in the database below.
    "URL": None,
    #: The alias in DATABASES.
    "DATABASE": "default",
    #: Options for the query of the URL made from the database: schema, pooler, wake, ...
    "OPTIONS": {},
    #: Whether `manage.py migrate` and the test runner create the tables of Trellis.
    "MIGRATE": True,
}
#: Options of a Django database that mean the same to the engine's driver.
_PASSED_ON: Final = (
    "application_name",
    "passfile",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
)


def configured(name: str) -> Any:  # noqa: ANN401 - any setting's value
    """Return one setting; refuse unknown ones."""
    given = getattr(settings, "TRELLIS", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"TRELLIS in the settings is {type(given).__name__}, not a dictionary. Write it like "
            "TRELLIS = {'SERVICE': 'shop.service:app'}."
        )
    for key in given:
        if key not in _DEFAULTS:
            near = get_close_matches(str(key).upper(), _DEFAULTS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(_DEFAULTS)}."
            raise ConfigurationError(f"TRELLIS in the settings has no {key!r}. {hint}")
    return given.get(name, _DEFAULTS[name])


def joined_alias() -> str | None:
    """Return the alias of the database that jobs are kept in; None if they are elsewhere."""
    return None if configured("URL") else str(configured("DATABASE"))


def jobs_url() -> Setting:
    """Return the URL of the jobs for when no variable and no settings file names one."""
    given = configured("URL")
    if given:
        return Setting(str(given), _origin())
    return Setting(database_url(configured("DATABASE"), configured("OPTIONS")), _origin())


def service_name() -> Setting:
    """Return the service as `module:variable`; the form `module.variable` is accepted, too."""
    name = str(configured("SERVICE"))
    if ":" not in name:
        module, _, variable = name.rpartition(".")
        name = f"{module}:{variable}"
    return Setting(name, _origin())


def _origin() -> str:
    return f"TRELLIS in {getattr(settings, 'SETTINGS_MODULE', 'the settings')}"


# -- the database --------------------------------------------------------------------------------


def database_url(alias: str, options: Mapping[str, object]) -> str:
    """Return the URL of the database with this alias, with these options in its query."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist as error:
        known = ", ".join(sorted(connections))
        raise ConfigurationError(
            f"TRELLIS names the database {alias!r}, but DATABASES only has: {known}."
        ) from error
    match connection.vendor:
        case "postgresql":
            return _postgres_url(alias, connection.settings_dict, options)
        case "sqlite":
            return _sqlite_url(alias, connection.settings_dict, options)
        case vendor:
            raise UnsupportedDatabase(
                f"Jobs cannot be kept in the database {alias!r}: it is {vendor}, and Trellis knows "
                "PostgreSQL and SQLite. Name another database with TRELLIS = {'URL': "
                "'postgresql://...'} or TRELLIS = {'DATABASE': 'another alias'} in the settings."
            )


def is_in_memory(alias: str) -> bool:
    """Return whether only this process sees the database, as in a test run on SQLite."""
    if alias not in set(connections):
        return False
    connection = connections[alias]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _sqlite_url(alias: str, settings: Mapping[str, Any], options: Mapping[str, object]) -> str:
    name = str(settings["NAME"])
    if options:
        raise ConfigurationError(
            f"TRELLIS has OPTIONS, but the database {alias!r} is SQLite, which takes none. "
            "Remove them."
        )
    if not name or name == ":memory:" or "mode=memory" in name:
        raise UnsupportedDatabase(
            f"The database {alias!r} is kept in memory, where no worker would find a job. Give it "
            "a file as NAME, or write TRELLIS = {'URL': 'memory://'} in the settings of tests."
        )
    return f"sqlite:///{Path(name).absolute()}"


def _postgres_url(alias: str, settings: Mapping[str, Any], options: Mapping[str, object]) -> str:
    given = settings.get("OPTIONS", {})
    if "service" in given or not settings["NAME"]:
        raise UnsupportedDatabase(
            f"The database {alias!r} is described by a service file, which Trellis does not read. "
            "Write the URL of the jobs as TRELLIS = {'URL': 'postgresql://...'}."
        )
    query = {name: str(given[name]) for name in _PASSED_ON if name in given}
    if "connect_timeout" in given:
        query["connect_timeout"] = f"{given['connect_timeout']}s"
    host, host_query = _host(str(settings["HOST"]), str(settings["PORT"]))
    query |= host_query | {name: str(value) for name, value in options.items()}
    suffix = f"?{urlencode(query, safe='/,')}" if query else ""
    name = quote(str(settings["NAME"]), safe="")
    return f"postgresql://{_login(settings)}{host}/{name}{suffix}"


def _login(settings: Mapping[str, Any]) -> str:
    user, password = (quote(str(settings[name]), safe="") for name in ("USER", "PASSWORD"))
    if not user:
        return ""
    return f"{user}:{password}@" if password else f"{user}@"


def _host(host: str, port: str) -> tuple[str, dict[str, str]]:
    """Return the host for a URL; sockets and several hosts go into the query."""
    if host.startswith("/") or "," in host or not host:
        query = {"host": host, "port": port}
        return "", {name: value for name, value in query.items() if value}
    name = f"[{host}]" if ":" in host else host
    return (f"{name}:{port}" if port else name), {}
