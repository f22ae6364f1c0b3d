"""A `nats://` URL: which servers, and the prefix of the deployment on them."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit, urlunsplit

from trellis.engines.jetstream.subjects import DEFAULT_PREFIX, check_prefix
from trellis.engines.redaction import shown
from trellis.errors import ConfigurationError


class Deployment(NamedTuple):
    """The servers of a URL, and the prefix of the subjects."""

    servers: str
    prefix: str


def deployment_of(url: str) -> Deployment:
    """Read `nats://host:port?prefix=NAME`; raise `ConfigurationError` for another URL."""
    parts = urlsplit(url)
    if parts.scheme not in {"nats", "tls"}:
        raise ConfigurationError(
            f"This is for jobs on NATS, and {shown(url)} is another store. Write "
            "--url nats://host:4222, or set TRELLIS_URL."
        )
    options = parse_qs(parts.query, keep_blank_values=True)
    (prefix,) = options.pop("prefix", [DEFAULT_PREFIX])[-1:]
    if options:
        raise ConfigurationError(
            f"{shown(url)} has options that Trellis does not know: {', '.join(sorted(options))}."
        )
    servers = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    return Deployment(servers, check_prefix(prefix))
