"""The stores of jobs. `make_engine(url)` makes every engine, and imports it only when needed.

Each engine implements `port.Engine` and does not know the lifecycle: it commits decisions made by
`trellis.core`. May import `core`, `errors` and `failpoints`. Start reading at `port.py`, then
`memory/`, the smallest complete engine and the reference for all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trellis.errors import CapabilityMissing, ConfigurationError, UnknownScheme

if TYPE_CHECKING:
    from trellis.engines.port import Engine

_KNOWN = "sqlite:///path/to/jobs.db, postgresql://host/database or memory://"
_PLANNED = ("nats", "https")


def make_engine(url: str, *, create: bool = True) -> Engine:
    """Return an engine for the URL, not yet opened.

    `create=False` refuses to create a missing database, for commands that only read.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigurationError(f"{url!r} is not an engine URL. Write {_KNOWN}.")
    if scheme == "memory":
        from trellis.engines.memory import MemoryEngine  # noqa: PLC0415 - loaded only when needed

        return MemoryEngine()
    if scheme == "sqlite":
        from trellis.engines.sqlite import SqliteEngine  # noqa: PLC0415 - loaded only when needed

        return SqliteEngine(_sqlite_path(url, rest), create=create)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    if scheme in _PLANNED:
        raise CapabilityMissing(
            f"This version of Trellis has no {scheme}:// engine yet. Use {_KNOWN}."
        )
    raise UnknownScheme(f"Trellis does not know {scheme}:// URLs. Use {_KNOWN}.")


def _postgres(url: str) -> Engine:
    try:
        from trellis.engines.postgres import PostgresEngine  # noqa: PLC0415 - loaded only when needed
    except ModuleNotFoundError as error:
        raise CapabilityMissing(
            f"PostgreSQL needs {error.name}, which is not installed. Run: "
            "pip install 'trellis-jobs[postgres]'"
        ) from error
    return PostgresEngine(url)


def _sqlite_path(url: str, rest: str) -> str:
    if not rest.startswith("/") or rest == "/":
        raise ConfigurationError(
            f"{url!r} names no file. Write sqlite:///jobs.db (beside the program) or "
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
