"""A `nats://` URL: which servers, how to log in, and the prefix of the deployment on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from trellis.core.names import check_service
from trellis.engines.jetstream.subjects import DEFAULT_PREFIX, check_prefix
from trellis.engines.redaction import shown
from trellis.errors import ConfigurationError

#: A host or an address, in brackets if it has colons, and a port.
_ADDRESS: Final = re.compile(r"([^\s/@:\[\]]+|\[[^\]]+\])(:\d{1,5})?")

_OPTIONS: Final = frozenset({"prefix", "service", "replicas"})


class Deployment(NamedTuple):
    """The servers of a URL, and the prefix of the subjects."""

    servers: str
    prefix: str
    #: The one service of the user; None: the user may write the jobs of all.
    service: str | None = None
    #: How many servers keep each stream; None: three if there are as many, else one.
    replicas: int | None = None


def deployment_of(url: str) -> Deployment:
    """Read `nats://host:port?prefix=NAME&service=NAME&replicas=NUMBER`.

    Raises `ConfigurationError` for anything else.
    """
    # The scheme may stand before each server.
    parts = urlsplit(re.sub(r",(nats|tls)://", ",", url))
    if parts.scheme not in {"nats", "tls"}:
        raise ConfigurationError(
            f"This is for jobs on NATS, and {shown(url)} is another store. Write "
            "--url nats://host:4222, or set TRELLIS_URL."
        )
    if parts.fragment:
        raise ConfigurationError(
            f"{shown(url)} has a #, after which nothing is read. Leave it out; in a password, "
            "write %23."
        )
    options = _options_of(url, parts.query)
    prefix, service = options.get("prefix", DEFAULT_PREFIX), options.get("service")
    replicas = options.get("replicas")
    if replicas not in {None, "1", "3", "5"}:
        raise ConfigurationError(
            f"replicas={replicas} in {shown(url)} is no number of replicas: write 1, 3 or 5."
        )
    servers = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    if parts.path.strip("/"):
        raise ConfigurationError(
            f"{shown(url)} has a path, which no NATS server has. Name a deployment by ?prefix=NAME."
        )
    for address in parts.netloc.split(","):
        if _ADDRESS.fullmatch(address.rpartition("@")[2]) is None:
            raise ConfigurationError(
                f"{shown(url)} names no server: write nats://host:4222, and several servers as "
                "nats://host1:4222,host2:4222."
            )
    return Deployment(
        servers,
        check_prefix(prefix),
        None if service is None else check_service(service),
        None if replicas is None else int(replicas),
    )


def _options_of(url: str, query: str) -> dict[str, str]:
    options = parse_qs(query, keep_blank_values=True)
    twice = sorted(name for name, values in options.items() if len(values) > 1)
    if twice:
        raise ConfigurationError(
            f"{shown(url)} has an option twice: {', '.join(twice)}. Write each once."
        )
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"{shown(url)} has options that Trellis does not know: {', '.join(unknown)}. "
            "It knows prefix, service and replicas."
        )
    return {name: value for name, (value,) in options.items()}


class Servers(NamedTuple):
    """The addresses of servers, and the login of all of them as options of the client."""

    addresses: list[str]
    login: dict[str, str]


def servers_of(urls: Sequence[str]) -> Servers:
    """Take the login out of the URLs of servers.

    The client uses a login in a URL for that server alone, so it could not connect to servers that
    it learns from others.
    """
    addresses, login = [], {}
    for url in urls:
        scheme, separator, rest = url.rpartition("://")
        name, at, place = rest.rpartition("@")
        addresses.append(f"{scheme}{separator}{place}")
        if at:
            user, colon, password = map(unquote, name.partition(":"))
            login = {"user": user, "password": password} if colon else {"token": user}
    return Servers(addresses, login)
