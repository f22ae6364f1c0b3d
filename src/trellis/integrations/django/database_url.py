"""From a Django database to the URL of the engine that keeps jobs in it.

The very place Django writes to, so that `tx=connection` joins its transactions: also the database
of a test run, whose name Django changes in these settings. What cannot be said in a URL is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.db import connections  # type: ignore[import-untyped]
from django.utils.connection import ConnectionDoesNotExist  # type: ignore[import-untyped]

from trellis.errors import ConfigurationError, UnsupportedDatabase

#: Options of Django's that mean the same to our driver.
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


def database_url(alias: str, options: Mapping[str, object]) -> str:
    """Return the URL of the database with this alias, with options of ours in its query."""
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
                "PostgreSQL and SQLite. Keep them elsewhere, with TRELLIS = {'URL': "
                "'postgresql://...'} or another alias as TRELLIS = {'DATABASE': ...} in the "
                "settings."
            )


def is_in_memory(alias: str) -> bool:
    """Tell whether nobody else could find a job there: so Django tests projects on SQLite."""
    if alias not in set(connections):
        return False
    connection = connections[alias]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _sqlite_url(alias: str, settings: Mapping[str, Any], options: Mapping[str, object]) -> str:
    name = str(settings["NAME"])
    if options:
        raise ConfigurationError(
            f"TRELLIS has OPTIONS, but the database {alias!r} is SQLite, which takes none. "
            "Leave them out."
        )
    if not name or name == ":memory:" or "mode=memory" in name:
        raise UnsupportedDatabase(
            f"The database {alias!r} is kept in memory, where no worker would find a job. Give it "
            "a file as NAME, or write TRELLIS = {'URL': 'memory://'} in the settings of tests."
        )
    return f"sqlite:///{Path(name).absolute()}"


def _postgres_url(alias: str, settings: Mapping[str, Any], options: Mapping[str, object]) -> str:
    theirs = settings.get("OPTIONS", {})
    if "service" in theirs or not settings["NAME"]:
        raise UnsupportedDatabase(
            f"The database {alias!r} is described by a service file, which Trellis does not read. "
            "Write the place of the jobs as TRELLIS = {'URL': 'postgresql://...'}."
        )
    query = {name: str(theirs[name]) for name in _PASSED_ON if name in theirs}
    if "connect_timeout" in theirs:
        query["connect_timeout"] = f"{theirs['connect_timeout']}s"
    place, elsewhere = _place(str(settings["HOST"]), str(settings["PORT"]))
    query |= elsewhere | {name: str(value) for name, value in options.items()}
    words = f"?{urlencode(query, safe='/,')}" if query else ""
    return f"postgresql://{_login(settings)}{place}/{quote(str(settings['NAME']), safe='')}{words}"


def _login(settings: Mapping[str, Any]) -> str:
    user, password = (quote(str(settings[name]), safe="") for name in ("USER", "PASSWORD"))
    if not user:
        return ""
    return f"{user}:{password}@" if password else f"{user}@"


def _place(host: str, port: str) -> tuple[str, dict[str, str]]:
    """Return the host as it stands in a URL; sockets and several hosts stand in its query."""
    if host.startswith("/") or "," in host or not host:
        query = {"host": host, "port": port}
        return "", {name: value for name, value in query.items() if value}
    name = f"[{host}]" if ":" in host else host
    return (f"{name}:{port}" if port else name), {}
