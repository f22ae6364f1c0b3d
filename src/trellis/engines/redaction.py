"""URLs without their passwords, and statements without their values, for messages and logs."""

from __future__ import annotations

import re
import shlex
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

_HIDDEN: Final = "***"
_SECRETS: Final = frozenset({"password", "sslpassword"})
#: Where the options of a URL begin.
_OPTIONS: Final = re.compile(r"\?\w+=")
#: Characters that end a user or password too early, all others, and those that may stay.
_UNQUOTED: Final = re.compile(r"[@/?#\[\]]")
_ORDINARY: Final = re.compile(r"[^@/?#\[\]]+")
_QUOTED: Final = "%!$&'()*+,;=~"
#: Where a value or a comment begins in a statement of PostgreSQL; `$1` is no value.
_VALUE: Final = re.compile(r"'|\$(?!\d)|--|/\*|(?<![\w$])\d")
_LONGEST: Final = 120


class Parts(NamedTuple):
    """A URL as its writer meant it: also if the password contains characters that end it."""

    #: Up to `://`; for what is no URL, everything.
    scheme: str
    #: What is before the last `@`; None if there is none.
    user: str | None
    password: str | None
    #: Hosts, ports and the path.
    place: str
    #: From the `?` of the first option on.
    options: str

    def joined(self, user: str | None, password: str | None) -> str:
        """Return the URL with another user and password, and hidden passwords in its options."""
        given = parse_qsl(self.options[1:], keep_blank_values=True)
        hidden = [(name, _hide(name, value)) for name, value in given]
        options = self.options if hidden == given else f"?{urlencode(hidden, safe='/:@*')}"
        login = "" if user is None else f"{user}@" if password is None else f"{user}:{password}@"
        return f"{self.scheme}{login}{self.place}{options}"


def parts_of(url: str) -> Parts:
    """Take a URL apart."""
    scheme, separator, rest = url.partition("://")
    scheme += separator
    found = _OPTIONS.search(rest)
    end = len(rest) if found is None else found.start()
    login, at, place = rest[:end].rpartition("@")
    if not at or login.startswith("/"):  # a path may contain @
        return Parts(scheme, None, None, rest[:end], rest[end:])
    user, colon, password = login.partition(":")
    return Parts(scheme, user, password if colon else None, place, rest[end:])


def shown(url: str) -> str:
    """Return the URL without the passwords of its user and options."""
    parts = parts_of(url)
    return parts.joined(parts.user, None if parts.password is None else _HIDDEN)


def repaired(url: str) -> str | None:
    """Return the URL with its user and password quoted, the password hidden; None if they are.

    >>> repaired("postgresql://app:p@ss@db/shop")
    'postgresql://app:***%40***@db/shop'
    """
    parts = parts_of(url)
    if not _UNQUOTED.search(f"{parts.user or ''}{parts.password or ''}"):
        return None
    user = quote(parts.user or "", safe=_QUOTED)
    if parts.password is None:
        return parts.joined(user, None)
    return parts.joined(user, quote(_ORDINARY.sub(_HIDDEN, parts.password), safe="*"))


def as_argument(url: str) -> str:
    """Return the URL as an argument of `--url`, with a hint if a password must be filled in."""
    text = shown(url)
    hint = f" (with the password for {_HIDDEN})" if _HIDDEN in text else ""
    return f"{shlex.quote(text)}{hint}"


def without_values(statement: str) -> str:
    """Return the beginning of the statement of another session, up to its first value or comment.

    >>> without_values("update account set  password = 'secret' where id = 1")
    'update account set password = ...'
    """
    text = " ".join(statement.split())
    found = _VALUE.search(text)
    end = min(len(text), _LONGEST) if found is None else min(found.start(), _LONGEST)
    begun = text[:end].rstrip()
    return begun if end == len(text) or not begun else f"{begun} ..."


def _hide(name: str, value: str) -> str:
    if name in _SECRETS:
        return _HIDDEN
    return shown(value) if name == "listen" else value
