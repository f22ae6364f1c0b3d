"""Access by tokens: what a scope allows, the text of a token, and what is stored of it.

A token is `trl_<id>_<secret>`. The id finds its row and may be shown; the secret has 256 random
bits, so its SHA-256 is stored and no slow hash is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from trellis.core.names import check_service
from trellis.errors import ConfigurationError

#: Read everything; change everything that operators change; follow changes as they happen.
READ, MUTATE, STREAM = "admin.read", "admin.mutate", "admin.stream"
ADMIN_SCOPES: Final = (READ, MUTATE, STREAM)
#: Scopes with the name of a service: run its jobs; create its jobs.
SERVICE_SCOPES: Final = ("worker", "submit")
#: What marks the two rows of a login among the scopes; no token is created with them.
LOGIN, SESSION = "login", "session"
#: As the name of a service: every service.
ALL_SERVICES: Final = "*"
_TOKEN: Final = re.compile(r"trl_([0-9a-z]{12})_([0-9A-Za-z_-]{43})")
_ID_LENGTH: Final = 12
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_KNOWN: Final = "admin.read, admin.mutate, admin.stream, worker:SERVICE or submit:SERVICE"


class TokenText(NamedTuple):
    """The parts of a token."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"trl_{self.id}_{self.secret}"


def parse_token(text: str) -> TokenText | None:
    """Return the parts of a token; None if the text cannot be one.

    >>> parse_token("trl_0123456789ab_" + "x" * 43).id
    '0123456789ab'
    """
    found = _TOKEN.fullmatch(text)
    return None if found is None else TokenText(*found.groups())


def parse_code(text: str) -> TokenText | None:
    """Return the parts of a login code: a token without the mark that tokens have in front."""
    return parse_token(f"trl_{text}")


def session_id(code: TokenText) -> str:
    """Return the id of the session that a login code opens, so that it opens one only."""
    number = int(hash_secret(f"session {code.secret}"), 16)
    digits = []
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def forgery_guard(session: TokenText) -> str:
    """Return what a page of this session sends in a header, and a page of another site cannot."""
    return hmac.new(session.secret.encode(), b"forgery guard", hashlib.sha256).hexdigest()


def has_token(text: str) -> bool:
    """Return whether a text has a token in it."""
    return _TOKEN.search(text) is not None


def hash_secret(secret: str) -> str:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_secret(secret: str, stored: str) -> bool:
    """Return whether this is the secret of which the hash is stored, in constant time."""
    return hmac.compare_digest(hash_secret(secret), stored)


def check_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes of a new token, each once; raise `ConfigurationError` for a wrong one."""
    checked = tuple(dict.fromkeys(_check_scope(each) for each in scopes))
    if not checked:
        raise ConfigurationError(f"A token without a scope allows nothing. Give {_KNOWN}.")
    return checked


def _check_scope(scope: str) -> str:
    kind, colon, service = scope.partition(":")
    if scope in ADMIN_SCOPES:
        return scope
    if kind not in SERVICE_SCOPES or not colon:
        raise ConfigurationError(f"There is no scope {scope!r}. Give {_KNOWN}.")
    if service != ALL_SERVICES:
        check_service(service)
    return scope


def allows(scopes: Iterable[str], needed: str) -> bool:
    """Return whether a token with these scopes may do what needs this one.

    >>> allows(["worker:*"], "worker:shop"), allows(["submit:shop"], "worker:shop")
    (True, False)
    """
    kind, _, service = needed.partition(":")
    accepted = {needed, f"{kind}:{ALL_SERVICES}"} if service else {needed}
    return not accepted.isdisjoint(scopes)
