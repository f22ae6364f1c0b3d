"""A `postgresql://` URL: which server and database, and how Trellis uses them.

The query has options of Trellis beside those of the driver: `schema` (of the tables, `trellis`),
`wake` (`listen`, the default, or `poll`), `pooler` (`transaction` behind a transaction pooler),
`listen` (a URL past the pooler for LISTEN), `statement_timeout`, `connect_timeout` (durations).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from trellis.core.durations import SECOND, micros
from trellis.engines.redaction import parts_of, repaired, shown
from trellis.errors import ConfigurationError

_PORTS: Final = 1 << 16
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OPTIONS: Final = frozenset(
    {"schema", "wake", "pooler", "listen", "statement_timeout", "connect_timeout"}
)
#: Options of the driver. It sends all others to the server, which knows its own settings.
_DRIVERS: Final = frozenset(
    {
        "dbname", "gsslib", "host", "krbsrvname", "passfile", "password", "port", "service",
        "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcrl", "sslkey",
        "sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "target_session_attrs", "user",
    }
)  # fmt: skip
#: Reading commands answer within about five seconds, also while another session locks the tables.
_LOCK_TIMEOUT: Final = 3.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the jobs are, and how to get there."""

    #: The URL for the driver.
    dsn: str
    schema: str = "trellis"
    wake: Literal["listen", "poll"] = "listen"
    #: The pooler in front of the server; behind `transaction` no setting outlives a transaction.
    pooler: Literal["none", "session", "transaction"] = "none"
    #: Where to LISTEN when `dsn` leads to a pooler.
    listen: str | None = None
    #: Seconds after which a statement, or a new connection, is abandoned.
    statement_timeout: float = 30.0
    connect_timeout: float = 10.0
    #: As it was given, with the options of Trellis.
    url: str = ""

    @property
    def lock_timeout(self) -> float:
        """Seconds after which the server ends a wait for a lock: before the statement's timeout."""
        return min(_LOCK_TIMEOUT, self.statement_timeout / 2)

    @property
    def can_listen(self) -> bool:
        """Whether LISTEN can be tried."""
        return self.wake == "listen" and (self.pooler != "transaction" or self.listen is not None)

    @property
    def shown(self) -> str:
        """The address without its password, for people."""
        return shown(self.url or self.dsn)


def read_address(url: str) -> Address:
    """Read a URL; raise ConfigurationError if it cannot be right."""
    _refuse_unquoted(url)
    _refuse_ports(url)
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in options if name in _OPTIONS}
    if "listen" in own:
        read_address(own["listen"])
    drivers = [(name, value) for name, value in options if name not in _OPTIONS]
    dsn = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(drivers, safe="/")))
    # urlunsplit leaves out the empty host of postgresql:///name, which the driver insists on.
    if not parts.netloc and not dsn.startswith("postgresql://"):
        dsn = dsn.replace("postgresql:", "postgresql://", 1)
    return Address(
        dsn,
        _schema(own.get("schema", "trellis")),
        "poll" if _word("wake", own, ("listen", "poll")) == "poll" else "listen",
        _pooler(own),
        own.get("listen"),
        _seconds("statement_timeout", own, "30s"),
        _seconds("connect_timeout", own, "10s"),
        url,
    )


def nearest_option(name: str) -> str | None:
    """Return the option that was probably meant."""
    return next(iter(get_close_matches(name, sorted(_OPTIONS | _DRIVERS), 1)), None)


def _refuse_unquoted(url: str) -> None:
    """Refuse characters that end the password too early, and a `#`."""
    instead = repaired(url)
    if instead is not None:
        raise ConfigurationError(
            "The user or password of the URL contains a character that must be quoted there: @ as "
            f"%40, / as %2F, ? as %3F, # as %23. Write: {instead} (*** stays as it is)."
        )
    if "#" in url:
        raise ConfigurationError(
            f"{shown(url)} contains #, which ends a URL too early. Write it as %23."
        )


def _refuse_ports(url: str) -> None:
    """Refuse a port that is no number; it is not repeated, because it may be a password."""
    place = parts_of(url).place.partition("/")[0]
    options = dict(parse_qsl(parts_of(url).options[1:]))
    ports = [each.rpartition("]")[2].partition(":")[2] for each in place.split(",")]
    ports += options.get("port", "").split(",")
    if all(not port or (port.isdecimal() and 0 < int(port) < _PORTS) for port in ports):
        return
    raise ConfigurationError(
        "A port in the URL is not a number from 1 to 65535. Write it like "
        "postgresql://user:password@host:5432/database."
    )


def _schema(name: str) -> str:
    if _SCHEMA.fullmatch(name) is None or name.startswith("pg_"):
        raise ConfigurationError(
            f"schema={name!r} is not usable. Use lower-case letters, digits and underscores, "
            "beginning with a letter, at most 63 characters."
        )
    return name


def _word(name: str, given: dict[str, str], allowed: tuple[str, ...]) -> str:
    word = given.get(name, allowed[0])
    if word not in allowed:
        raise ConfigurationError(f"{name}={word!r} is not known. Use one of {', '.join(allowed)}.")
    return word


def _pooler(given: dict[str, str]) -> Literal["none", "session", "transaction"]:
    match _word("pooler", given, ("none", "session", "transaction")):
        case "session":
            return "session"
        case "transaction":
            return "transaction"
        case _:
            return "none"


def _seconds(name: str, given: dict[str, str], default: str) -> float:
    try:
        return micros(given.get(name, default)) / SECOND
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{name}={given[name]!r} is not a duration. Write it like {name}={default}."
        ) from error
