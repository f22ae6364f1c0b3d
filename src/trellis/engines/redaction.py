"""URLs without their passwords, for logs, screens and error messages."""

from __future__ import annotations

import shlex
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

_HIDDEN: Final = "***"
_SECRETS: Final = frozenset({"password", "sslpassword"})


def shown(url: str) -> str:
    """Return the URL without the passwords of its user and options."""
    parts = urlsplit(url)
    if parts.password is not None:
        host = parts.netloc.rpartition("@")[2]
        netloc = f"{quote(parts.username or '', safe='')}:{_HIDDEN}@{host}"
        parts = parts._replace(netloc=netloc)
    given = parse_qsl(parts.query, keep_blank_values=True)
    hidden = [(name, _hide(name, value)) for name, value in given]
    if hidden != given:
        parts = parts._replace(query=urlencode(hidden, safe="/:@*"))
    elif parts.password is None:
        return url
    return urlunsplit(parts)


def as_argument(url: str) -> str:
    """Return the URL as an argument of `--url`, with a hint if a password must be filled in."""
    text = shown(url)
    hint = f" (with the password for {_HIDDEN})" if _HIDDEN in text else ""
    return f"{shlex.quote(text)}{hint}"


def _hide(name: str, value: str) -> str:
    if name in _SECRETS:
        return _HIDDEN
    return shown(value) if name == "listen" else value
