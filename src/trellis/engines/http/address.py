"""The address of a server: its URL without a token in it, and the token of the environment."""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from trellis.errors import ConfigurationError

#: The environment variable with the token.
TOKEN: Final = "TRELLIS_TOKEN"  # noqa: S105 - its name
_API: Final = "/api/v1"
#: What a header can hold; a text with a line break would be two headers.
_SENDABLE: Final = re.compile(r"[\x21-\x7e]+")


class ServerAddress(NamedTuple):
    """Where a server is, and who calls it."""

    #: Without the path of the API and without a slash at the end.
    url: str
    token: str | None


def server_address(url: str) -> ServerAddress:
    """Return the address in a URL; raise `ConfigurationError` if it cannot be one."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or "token" in parts.query:
        raise ConfigurationError(
            f"The URL of {parts.hostname} has a token or password in it, which logs and process "
            f"lists would show. Put the token into {TOKEN} and write "
            f"{parts.scheme}://{parts.hostname or 'host'}."
        )
    if not parts.hostname:
        raise ConfigurationError(f"{url!r} has no host. Write http://127.0.0.1:8321.")
    if parts.query or parts.fragment:
        raise ConfigurationError(
            f"{url!r} has options, which Trellis does not accept for a server. Remove them."
        )
    try:
        _ = parts.port
    except ValueError:
        raise ConfigurationError(
            f"{url!r} has no usable port. Write {parts.hostname}:8321."
        ) from None
    return ServerAddress(url.rstrip("/").removesuffix(_API).rstrip("/"), _token())


def _token() -> str | None:
    text = os.environ.get(TOKEN, "").strip()
    if text and not _SENDABLE.fullmatch(text):
        raise ConfigurationError(
            f"{TOKEN} is not a token: it has characters that a header cannot have. Create one "
            "with: trellis tokens create SCOPE"
        )
    return text or None
