"""The stores of jobs. `make_engine(url)` makes every engine, and imports it only when needed.

Each engine implements `port.Engine` and does not know the lifecycle: it commits decisions made by
`trellis.core`. May import `core`, `errors` and `failpoints`. Start reading at `port.py`, then
`memory/`, the smallest complete engine and the reference for all others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trellis.engines.redaction import shown
from trellis.errors import CapabilityMissing, ConfigurationError, UnknownScheme

if TYPE_CHECKING:
    from trellis.engines.port import Engine

_KNOWN = (
    "sqlite:///path/to/jobs.db, postgresql://host/database, nats://host:4222, https://server or "
    "memory://"
)
_SERVERS = ("http", "https")
_NATS = ("nats", "tls")


def make_engine(url: str, *, create: bool = True) -> Engine:
    """Return an engine for the URL, not yet opened.

    `create=False` refuses to create a missing database, for commands that only read.
    """
    scheme, rest = check_url(url)
    if scheme == "memory":
        from trellis.engines.memory import MemoryEngine  # noqa: PLC0415 - loaded only when needed

        return MemoryEngine()
    if scheme == "sqlite":
        from trellis.engines.sqlite import SqliteEngine  # noqa: PLC0415 - loaded only when needed

        return SqliteEngine(_sqlite_path(url, rest), create=create)
    if scheme in _NATS:
        return _nats(url)
    return _http(url) if scheme in _SERVERS else _postgres(url)


def check_url(url: str) -> tuple[str, str]:
    """Return scheme and rest of a URL; raise if no engine can have it. Imports no engine."""
    scheme, separator, rest = str(url).partition("://")
    if not separator:
        raise ConfigurationError(f"{url!r} is not an engine URL. Write {_KNOWN}.")
    if scheme == "sqlite":
        _sqlite_path(url, rest)
    if scheme in ("memory", "sqlite", "postgresql", "postgres", *_NATS, *_SERVERS):
        return scheme, rest
    plain, driver, _ = scheme.partition("+")
    if driver and plain in ("postgresql", "postgres", "sqlite"):
        raise UnknownScheme(
            f"{scheme}:// names a driver, but Trellis brings its own. Write: "
            f"{shown(f'{plain}://{rest}')}"
        )
    raise UnknownScheme(f"Trellis does not know {scheme}:// URLs. Use {_KNOWN}.")


def is_nats(url: str) -> bool:
    """Return whether the jobs of a URL are on NATS."""
    return url.partition("://")[0] in _NATS


def absolute_url(url: str) -> str:
    """Return the URL; that of a SQLite file with the absolute path."""
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite":
        return url
    return f"sqlite:///{Path(_sqlite_path(url, rest)).absolute()}"


def _postgres(url: str) -> Engine:
    try:
        from trellis.engines.postgres import PostgresEngine  # noqa: PLC0415 - loaded only when needed
    except ModuleNotFoundError as error:
        raise CapabilityMissing(
            f"PostgreSQL needs {error.name}, which is not installed. Run: "
            "pip install 'trellis-jobs[postgres]'"
        ) from error
    return PostgresEngine(url)


def _nats(url: str) -> Engine:
    try:
        from trellis.engines.jetstream import JetStreamEngine, ServiceEngine  # noqa: PLC0415 - loaded only when needed
        from trellis.engines.jetstream.url import deployment_of  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CapabilityMissing(
            f"Jobs on NATS need {error.name}, which is not installed. Run: "
            "pip install 'trellis-jobs[nats]'"
        ) from error
    servers, prefix, service, replicas = deployment_of(url)
    if service is not None:
        return ServiceEngine(servers, service, prefix=prefix)
    return JetStreamEngine(servers, prefix=prefix, replicas=replicas)


def _http(url: str) -> Engine:
    try:
        from trellis.engines.http.engine import http_engine  # noqa: PLC0415 - loaded only when needed
    except ModuleNotFoundError as error:
        raise CapabilityMissing(
            f"Jobs behind a server need {error.name}, which is not installed. Run: "
            "pip install 'trellis-jobs[http]'"
        ) from error
    return http_engine(url)


def _sqlite_path(url: str, rest: str) -> str:
    if not rest.startswith("/") or rest == "/":
        raise ConfigurationError(
            f"{url!r} has no path to a file. Write sqlite:///jobs.db (beside the program) or "
            "sqlite:////var/lib/jobs.db (an absolute path: four slashes)."
        )
    path = rest[1:]
    if path == ":memory:":
        raise ConfigurationError(
            "sqlite:///:memory: would be one database per thread. Use memory:// instead."
        )
    if "?" in path:
        raise ConfigurationError(
            f"{url!r} has options, which Trellis does not accept for SQLite. Remove them."
        )
    return path
